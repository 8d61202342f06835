# What both packages must do once installed; sourced.

# Fails if a command succeeds; `!` before a command does not end a script.
fails() { if "$@" >/dev/null 2>&1; then echo "unexpected: $*"; exit 1; fi; }

milliseconds() { date +%s%3N; }

# The clock of a busy machine tells little: the fastest of five.
fastest=100000
for _ in 1 2 3 4 5; do
    begin=$(milliseconds)
    [ "$(tandem --version)" = "tandem $VERSION" ]
    took=$(($(milliseconds) - begin))
    [ $took -ge $fastest ] || fastest=$took
done
echo "tandem --version: $fastest ms"

begin=$(milliseconds)
tandem demo --quiet >demo.txt
demo=$(($(milliseconds) - begin))
echo "tandem demo: $demo ms"
grep -q "sooner on average than" demo.txt
[ -s report.html ]

tandem daemon --provider cpu --devices 1 --policy tandem:slice_s=1 2>daemon.log &
daemon=$!
for _ in $(seq 200); do tandem queue >/dev/null 2>&1 && break; sleep 0.1; done
tandem submit -W -J first --class demo -- tandem-train --steps 300 --gap 50
tandem submit -a 0-1 -J pair --class demo -- tandem-train --steps 100000 --gap 50
shared=
for _ in $(seq 240); do
    if tandem info --json last | tr ',' '\n' | grep -q '"beside":\[.*2'; then shared=1; break; fi
    sleep 0.5
done
[ -n "$shared" ] || { echo "the jobs do not share"; tandem queue; tandem info 2 3; cat daemon.log; exit 1; }
tandem cancel all >/dev/null
tandem wait 2 3 || true
tandem submit -W -J last -- tandem-train --steps 20
[ "$(tandem queue --all --json | grep -o '"state":"completed"' | wc -l)" = 2 ]

before_removal() {
    kill $daemon
    wait $daemon || true
    fails grep -sqx tandem /proc/[0-9]*/comm
}

after_removal() {
    hash -r
    fails command -v tandem
    echo "removed; $fastest $demo"
}
