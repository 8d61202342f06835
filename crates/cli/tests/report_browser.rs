//! The report in a real browser: every chart is drawn and the console stays clean.

mod common;

use common::{folder, read, succeed_in, write};
use std::path::Path;
use std::process::{Command, Stdio};

const POLICIES: &str = "fifo,sjf,srtf,tiresias";
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

/// Whether there is nothing to do because somebody wants no browser.
fn without_browser() -> bool {
    let skip = std::env::var_os("TANDEM_SKIP_BROWSER").is_some();
    if skip {
        common::skipped("TANDEM_SKIP_BROWSER is set");
    }
    skip
}

/// The page as the browser sees it after its scripts have run.
fn open(report: &Path, width: u32) -> String {
    let profile = folder();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={width},900"))
        .args(["--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("file://{}", report.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| {
            panic!("chromium cannot be run ({error}): apt-get install chromium, or set TANDEM_SKIP_BROWSER=1")
        });
    assert!(output.status.success(), "chromium: {}", String::from_utf8_lossy(&output.stderr));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    String::from_utf8(output.stdout).expect("a page is text")
}

fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let from = page.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}"));
    let to = page[from..].find("</section>").expect("it ends");
    &page[from..from + to]
}

fn assert_drawn(page: &str, policies: usize, points: usize) {
    let root = page.find("<html").expect("a page");
    let root = &page[root..root + page[root..].find('>').expect("the tag ends")];
    assert!(root.contains("data-ready=\"1\""), "{root}");
    assert!(!root.contains("data-error"), "{root}");
    let count = |id: &str, mark: &str| section(page, id).matches(mark).count();
    assert!(count("summary", "<tr") > policies, "a row per policy");
    assert_eq!(count("chart-cdf", "<path class=\"ln\""), policies);
    // Only what is drawn in the picture counts, not the swatches of the legend.
    for id in ["chart-queue", "chart-util"] {
        assert!(count(id, "<path") >= policies, "{id}: {}", count(id, "<path"));
    }
    assert_eq!(count("chart-scatter", "<circle class=\"pt\""), points);
    let gantt = section(page, "chart-gantt");
    let marks = gantt.split("data-marks=\"").nth(1).expect("the Gantt chart counts its marks");
    let marks: u32 = marks.split('"').next().expect("a value").parse().expect("a number");
    assert!(marks > 0, "nothing in the Gantt chart");
}

/// Width of the first chart, in pixels.
fn picture_width(page: &str) -> u32 {
    let svg = section(page, "chart-cdf").split("<svg viewBox=\"0 0 ").nth(1).expect("a chart");
    svg.split(' ').next().expect("a width").parse().expect("a number")
}

#[test]
fn every_chart_is_drawn_on_a_desk_and_on_a_phone() {
    if without_browser() {
        return;
    }
    let dir = folder();
    let generate = ["trace", "generate", "--jobs", "300", "--gpus", "64", "--out", "trace.csv"];
    succeed_in(dir.path(), &generate);
    let compare = ["compare", "--trace", "trace.csv", "--cluster", "8x8", "--policies", POLICIES];
    succeed_in(dir.path(), &[&compare[..], &["--out", "results"]].concat());
    let report = dir.path().join("results/report.html");
    let page = open(&report, 1280);
    assert_drawn(&page, 4, 300);
    assert!(picture_width(&page) > 1000, "the page does not use the width of a desk");

    // The windows of this browser are never as narrow as a phone, so the page itself is made so.
    let narrow = read(&report).replacen("</head>", "<style>html{width:360px}</style></head>", 1);
    write(dir.path(), "phone.html", narrow);
    let page = open(&dir.path().join("phone.html"), 360);
    assert_drawn(&page, 4, 300);
    assert!(picture_width(&page) <= 360, "wider than a phone: {}", picture_width(&page));
}

/// Names come from users, and a report is passed on.
#[test]
fn text_from_the_trace_stays_text() {
    if without_browser() {
        return;
    }
    let dir = folder();
    let mut trace = "job_id,user,partition,submit_s,gpus,duration_s,model\n".to_owned();
    for number in 0..40 {
        let text = format!("{HOSTILE}{number}");
        trace += &format!("{text},{text},{text},{number},{},50,{text}\n", number % 4 + 1);
    }
    write(dir.path(), "<img src=x>.csv", trace);
    let compare =
        ["compare", "--trace", "<img src=x>.csv", "--cluster", "1x4", "--policies", "fifo,sjf"];
    succeed_in(dir.path(), &[&compare[..], &["--out", "results"]].concat());
    let report = dir.path().join("results/report.html");
    assert!(!read(&report).contains(HOSTILE), "the name stands in the file as it is");
    let page = open(&report, 1280);
    assert!(!page.contains("<img"), "a name became an element");
    assert_drawn(&page, 2, 40);
}
