//! Precedence of sources, and rejected values.

use super::*;

fn sources(env: &[(&str, &str)], files: &[&Path]) -> Sources {
    Sources {
        env: env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
        files: files.iter().map(|&file| file.to_owned()).collect(),
        uid: 1000,
        ..Sources::default()
    }
}

#[test]
fn flag_environment_files_default() {
    let dir = tempfile::tempdir().unwrap();
    let (own, machine) = (dir.path().join("own.toml"), dir.path().join("machine.toml"));
    std::fs::write(&own, "[daemon]\npolicy = 'sjf'\ndevices = 2\n").unwrap();
    std::fs::write(
        &machine,
        "[daemon]\npolicy = 'fifo'\ndevices = 3\nkill_grace_s = 5\nlog = 'warn'\n",
    )
    .unwrap();
    let env = [
        ("TANDEM_DAEMON__DEVICES", "4"),
        ("TANDEM_DAEMON__LOG", "debug"),
        ("TANDEM_OUTPUT", "csv"),
    ];
    let mut sources = sources(&env, &[&own, &machine, &dir.path().join("absent.toml")]);
    sources.flags.push(("daemon.log".to_owned(), "error".to_owned()));
    let (config, origins) = Config::resolve(&sources).unwrap();
    let daemon = &config.daemon;
    assert_eq!((daemon.policy.as_str(), daemon.devices, daemon.log.as_str()), ("sjf", 4, "error"));
    assert_eq!((daemon.kill_grace_s, daemon.stop_grace_s), (5.0, 60.0));
    assert_eq!(*origins.of("daemon.log"), Origin::Flag);
    assert_eq!(
        *origins.of("daemon.devices"),
        Origin::Environment("TANDEM_DAEMON__DEVICES".to_owned())
    );
    assert_eq!(*origins.of("daemon.policy"), Origin::File(own));
    assert_eq!(*origins.of("daemon.kill_grace_s"), Origin::File(machine));
    assert_eq!(*origins.of("daemon.stop_grace_s"), Origin::Default);
    assert!(daemon.cgroups);
    assert_eq!((daemon.restore_s_with("cpu"), daemon.restore_s_with("nvidia")), (1.0, 40.0));
}

#[test]
fn unknown_keys_and_invalid_values_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    let complaint = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let error = Config::resolve(&sources(&[], &[&file])).unwrap_err().to_string();
        assert!(error.contains("config.toml: "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    assert!(complaint("[daemon]\nsokcet = 'x'").contains("did you mean 'daemon.socket'?"));
    assert!(complaint("[deamon]\nsocket = 'x'").contains("did you mean 'daemon.socket'?"));
    assert!(complaint("[deamon]").contains("'deamon'"));
    assert!(complaint("socket = 'x'").contains("'socket'"));
    assert!(
        complaint("[daemon]\ndevices = -1").contains("daemon.devices is -1; give a whole number")
    );
    assert!(complaint("[daemon]\ndevices = '2'").contains("daemon.devices"));
    assert!(complaint("[learning]\nwindow_s = 0").contains("learning.window_s"));
    assert!(complaint("[learning]\nwindow_s = nan").contains("learning.window_s"));
    assert!(complaint("[sharing]\nforeign = 'ignore'").contains("give avoid, count"));
    assert!(complaint("[daemon]\ncgroups = 'v2'").contains("give auto, off"));
    assert!(complaint("[daemon\n").contains("line 1"));
    let error = Config::resolve(&sources(&[("TANDEM_DAEMON__POLICI", "x")], &[])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "TANDEM_DAEMON__POLICI: there is no key 'daemon.polici'; did you mean 'daemon.policy'?"
    );
    let off = sources(&[("TANDEM_DAEMON__CGROUPS", "off")], &[]);
    assert!(!Config::resolve(&off).unwrap().0.daemon.cgroups);
    let param = sources(&[("TANDEM_PARAM__X", "1")], &[]);
    assert!(Config::resolve(&param).is_ok());
}

#[test]
fn places_by_user_and_environment() {
    let place = |env: &[(&str, &str)], uid| {
        let config = Config::resolve(&Sources { uid, ..sources(env, &[]) }).unwrap().0;
        (config.daemon.socket.display().to_string(), config.daemon.state.display().to_string())
    };
    let own =
        ("/tmp/tandem-1000/daemon.sock".to_owned(), "/home/ann/.local/state/tandem".to_owned());
    assert_eq!(place(&[("HOME", "/home/ann")], 1000), own);
    assert_eq!(place(&[("XDG_RUNTIME_DIR", "/run/user/7")], 7).0, "/run/user/7/tandem/daemon.sock");
    assert_eq!(place(&[("XDG_STATE_HOME", "/s")], 7).1, "/s/tandem");
    // Somebody else made the folder, to keep the user from having a daemon.
    let taken = tempfile::Builder::new().prefix("tandem-40").rand_bytes(0).tempdir_in("/tmp");
    let taken = taken.unwrap();
    assert_eq!(taken.path(), Path::new("/tmp/tandem-40"));
    let machine = || "one".to_owned();
    let beside = |env: &[(&str, &str)]| {
        let sources = Sources { uid: 40, machine: machine(), ..sources(env, &[]) };
        Config::resolve(&sources).unwrap().0.daemon.socket.display().to_string()
    };
    let socket = "/home/ann/.local/state/tandem/socket-one/daemon.sock";
    assert_eq!(beside(&[("HOME", "/home/ann")]), socket);
    assert_eq!(beside(&[("XDG_STATE_HOME", "/s")]), "/s/tandem/socket-one/daemon.sock");
    assert_eq!(beside(&[]), "/tmp/tandem-40/daemon.sock");
    // Machines that share a home folder have states of their own; a store that is there stays.
    let home = tempfile::tempdir().unwrap();
    let here = |machine: &str| {
        let env = [("HOME", home.path().to_str().unwrap())];
        let machine = machine.to_owned();
        let sources = Sources { uid: 7, machine, ..sources(&env, &[]) };
        Config::resolve(&sources).unwrap().0.daemon.state
    };
    let base = home.path().join(".local/state/tandem");
    assert_eq!((here("one"), here("two")), (base.join("one"), base.join("two")));
    std::fs::create_dir_all(&base).unwrap();
    std::fs::write(base.join("state.db"), "").unwrap();
    assert_eq!(here("one"), base);
    assert_eq!(
        place(&[("HOME", "/root")], 0),
        (SHARED_SOCKET.to_owned(), "/var/lib/tandem".to_owned())
    );
    assert_eq!(place(&[("TANDEM_DAEMON_SOCKET", "~/s"), ("HOME", "/h")], 7).0, "/h/s");
}
