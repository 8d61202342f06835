//! The packages of `scripts/package` on a fresh Debian 12 without Rust, in a chroot that the test makes: installed,
//! `tandem demo`, a daemon with two jobs that share and finish, the store of the previous release opened, removed,
//! nothing left but what is documented.
//!
//! `TANDEM_TEST_PACKAGES=1` runs all of it, and builds the packages if target/packages has none, which takes minutes.
//! Always run: a .deb around the program under test, installed, used and removed, if `scripts/package --tools` was run.
//! Only root can make a chroot, with debootstrap.

#![allow(clippy::unwrap_used)]

mod common;

use common::{read, sample_job, skipped, tell, workspace};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The only package with this ending.
fn package(ending: &str) -> PathBuf {
    let folder = workspace().join("target/packages");
    let found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found[0].clone()
}

fn run(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}\n{said}\n{errors}");
    said
}

/// A folder in the user's cache that tests and scripts share.
fn cache(name: &str) -> PathBuf {
    let home = std::env::var("XDG_CACHE_HOME")
        .map_or_else(|_| Path::new(&std::env::var("HOME").unwrap()).join(".cache"), PathBuf::from);
    home.join(name)
}

/// Whether there can be a chroot here; says why not in one line.
fn can_chroot() -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can make a chroot");
        return false;
    }
    if Command::new("debootstrap").arg("--version").output().is_err() {
        skipped("debootstrap is not installed");
        return false;
    }
    true
}

/// Whether the released packages are to be tried; builds them if there are none.
fn ready() -> bool {
    if std::env::var_os("TANDEM_TEST_PACKAGES").is_none() {
        skipped("packages are tried with TANDEM_TEST_PACKAGES=1, which takes minutes");
        return false;
    }
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        if !workspace().join("target/packages/SHA256SUMS").exists() {
            run(Command::new(workspace().join("scripts/package")).current_dir(workspace()));
        }
    });
    true
}

/// A Debian 12 with Python and nothing else, made once and kept in the user's cache; `None` without a network.
fn debian() -> Option<PathBuf> {
    static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = MAKING.lock().unwrap();
    let image = cache("tandem-tests").join("debian-12.tar");
    if image.exists() {
        return Some(image);
    }
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    let root = tempfile::tempdir_in(image.parent().unwrap()).unwrap();
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", "--include=python3-venv", "bookworm"])
        .arg(root.path())
        .output()
        .unwrap();
    if !made.status.success() {
        skipped("debootstrap cannot make a Debian 12 here");
        return None;
    }
    let part = image.with_extension("part");
    run(Command::new("tar").arg("-C").arg(root.path()).arg("-cf").arg(&part).arg("."));
    std::fs::rename(part, &image).unwrap();
    Some(image)
}

/// The program `uv`, from the registry of Python packages; `None` without a network.
fn uv() -> Option<PathBuf> {
    let folder = cache("tandem-tests").join("uv");
    let program = folder.join("bin/uv");
    if !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&folder);
        let installed = pip.arg("uv").output().is_ok_and(|ran| ran.status.success());
        if !installed {
            skipped("uv cannot be had here");
            return None;
        }
    }
    Some(program)
}

/// Runs a script on a fresh system with only these packages, in namespaces that end with it.
fn on_debian(script: &str, packages: &[PathBuf], is_quick: bool) -> Option<String> {
    if !can_chroot() {
        return None;
    }
    let image = debian()?;
    let root = tempfile::tempdir().unwrap();
    run(Command::new("tar").arg("-C").arg(root.path()).arg("-xf").arg(image));
    // A temporary folder is its owner's alone; the root of a system is everybody's.
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir_all(root.path().join("packages")).unwrap();
    for package in packages {
        let name = package.file_name().unwrap();
        std::fs::copy(package, root.path().join("packages").join(name)).unwrap();
    }
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages");
    for name in [script, "check.sh", "../fixtures/state-0.1.0.sql"] {
        let file = scripts.join(name);
        std::fs::copy(&file, root.path().join(file.file_name().unwrap())).unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--net"]);
    command.arg(format!("--mount-proc={}", root.path().join("proc").display()));
    command.arg("chroot").arg(root.path()).args(["/bin/bash", &format!("/{script}")]);
    command.env_clear().env("VERSION", version());
    if is_quick {
        command.env("QUICK", "1");
    }
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    Some(run(&mut command))
}

/// The figures of a script: milliseconds of `--version` and of `demo`.
fn check_times(said: &str) {
    let last = said.lines().last().unwrap();
    tell(&said.replace('\n', "; "));
    let numbers: Vec<u64> = last
        .trim_start_matches("removed; ")
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    // 10 ms and 5 s on a quiet machine; tests also run on busy ones.
    assert!(numbers[0] <= 100, "tandem --version takes {} ms", numbers[0]);
    assert!(numbers[1] <= 30_000, "tandem demo takes {} ms", numbers[1]);
}

#[test]
fn the_wheel_on_a_fresh_debian() {
    if !ready() {
        return;
    }
    let wheel = package(".whl");
    let size = wheel.metadata().unwrap().len();
    assert!(size <= 12_000_000, "the wheel has {size} bytes");
    assert!(wheel.to_string_lossy().contains("manylinux"), "{wheel:?}");
    let packages: Vec<PathBuf> = std::iter::once(wheel).chain(uv()).collect();
    if let Some(said) = on_debian("wheel.sh", &packages, false) {
        check_times(&said);
    }
}

#[test]
fn the_deb_on_a_fresh_debian() {
    if !ready() {
        return;
    }
    if let Some(said) = on_debian("deb.sh", &[package(".deb")], false) {
        check_times(&said);
    }
}

#[test]
fn a_deb_around_the_program_under_test_is_installed_used_and_removed() {
    if !cache("tandem-tools").join("bin/cargo-deb").exists() {
        skipped("cargo-deb is not installed; scripts/package --tools installs it");
        return;
    }
    if !can_chroot() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let programs = Path::new(sample_job()).parent().unwrap();
    let mut build = Command::new(workspace().join("scripts/package"));
    build.arg("--deb-of").arg(programs).arg(out.path()).current_dir(workspace());
    run(&mut build);
    let deb = std::fs::read_dir(out.path()).unwrap().next().unwrap().unwrap().path();
    on_debian("deb.sh", &[deb], true);
}

#[test]
fn the_tarball_has_what_binstall_asks_for_and_checksums_and_sbom_agree() {
    if !ready() {
        return;
    }
    let folder = workspace().join("target/packages");
    run(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&folder));
    let tarball = package(".tar.gz");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let name = format!("tandem-{}-{target}", version());
    assert_eq!(tarball.file_name().unwrap().to_str().unwrap(), format!("{name}.tar.gz"));
    let listed = run(Command::new("tar").arg("-tzf").arg(&tarball));
    for file in ["tandem", "tandem-train", "LICENSE-MIT", "man/tandem.1", "tandem.service"] {
        assert!(listed.lines().any(|line| line == format!("{name}/{file}")), "{file}: {listed}");
    }
    let sbom: serde_json::Value = serde_json::from_str(&read(&package(".cdx.json"))).unwrap();
    let names: Vec<&str> = sbom["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"rusqlite") && names.contains(&"candle-core") && names.len() > 100);
    assert!(!names.contains(&"proptest"), "what only tests use is not in the programs");
}

#[test]
fn versions_of_program_module_and_metadata_agree() {
    let root = workspace();
    let module = read(&root.join("python/src/tandem/__init__.py"));
    assert!(module.contains(&format!("__version__ = \"{}\"", version())), "{module}");
    let project = read(&root.join("python/pyproject.toml"));
    assert!(
        project.contains("name = \"tandem-gpu\"") && project.contains("dynamic = [\"version\"]")
    );
    let manifest = read(&root.join("crates/cli/Cargo.toml"));
    assert!(manifest.contains("tandem-{ version }-{ target }{ archive-suffix }"));
    // Every file that the .deb takes from the tree is there.
    for line in manifest.lines().filter(|line| line.trim_start().starts_with("[\"../../")) {
        let file = line.split('"').nth(1).unwrap();
        let is_made = file.contains("target/package-stage");
        assert!(is_made || root.join("crates/cli").join(file).exists(), "{file}");
    }
}
