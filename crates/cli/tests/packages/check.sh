# What both packages must do once installed; sourced.

# Fails if a command succeeds; `!` before a command does not end a script.
fails() { if "$@" >/dev/null 2>&1; then echo "unexpected: $*"; exit 1; fi; }

milliseconds() { date +%s%3N; }

# Everything in the file system outside of /proc, /dev and /sys.
files() { { find / \( -path /proc -o -path /dev -o -path /sys \) -prune -o -print 2>/dev/null || true; } | sort; }

# The clock of a busy machine tells little: the fastest of five.
version_is_quick() {
    fastest=100000
    for _ in 1 2 3 4 5; do
        begin=$(milliseconds)
        [ "$(tandem --version)" = "tandem $VERSION" ]
        took=$(($(milliseconds) - begin))
        [ $took -ge $fastest ] || fastest=$took
    done
    echo "tandem --version: $fastest ms"
}

demo_works() {
    begin=$(milliseconds)
    tandem demo --quiet >demo.txt
    demo=$(($(milliseconds) - begin))
    echo "tandem demo: $demo ms"
    grep -q "sooner on average than" demo.txt
    [ -s report.html ]
}

# Two jobs share a core and both finish.
jobs_share_and_finish() {
    tandem submit -W -J first --class demo -- tandem-train --steps 300 --gap 50
    tandem submit -a 0-1 -J pair --class demo -- tandem-train --steps 1500 --gap 50
    shared=
    for _ in $(seq 240); do
        info=$(tandem info --json 3)
        if grep -q '"beside":\[2' <<<"${info// /}"; then shared=1; break; fi
        tandem wait --timeout 0s 2 3 >/dev/null 2>&1 && break
        sleep 0.5
    done
    [ -n "$shared" ] || { echo "the jobs do not share"; tandem queue --all; tandem info 2 3; exit 1; }
    echo "jobs 2 and 3 share"
    tandem wait --exit-code --timeout 10m 2 3
    tandem usage >/dev/null
}

# A process of tandem that is more than an entry that nobody asked for yet.
is_left() {
    for process in /proc/[0-9]*; do
        if grep -sqx tandem "$process/comm" && [ -n "$(tr -d '\0' 2>/dev/null <"$process/cmdline")" ]; then return 0; fi
    done
    return 1
}

daemon_ends() {
    tandem daemon stop
    # Neither the daemon nor a supervisor is left.
    for _ in $(seq 100); do is_left || return 0; sleep 0.1; done
    echo "a process of tandem is left"
    exit 1
}
