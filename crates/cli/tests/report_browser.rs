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

/// Jobs of four classes that hardly disturb each other, on too few GPUs; their names are hostile.
fn sharing_files(dir: &Path) {
    let class = |n: u64| format!("{HOSTILE}{},d,{},0", n % 4, 32);
    let mut trace =
        "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib,gpu_util\n".to_owned();
    for n in 0..60 {
        trace += &format!("{n},{},1,{},{},2000,40\n", n * 5, 300 + n % 7 * 100, class(n * 3 / 2));
    }
    write(dir, "trace.csv", trace);
    let columns = |n: u8| format!("model{n},dataset{n},batchsize{n},amp{n},gpu_num{n},speed{n}");
    let mut pairs = format!("{},{}\n", columns(1), columns(2));
    for a in 0..4 {
        for b in a..4 {
            let speed = |n: u64| if (a, b) == (3, 3) { 0.0 } else { 0.97 - 0.01 * n as f64 };
            pairs += &format!("{},1,{},{},1,{}\n", class(a), speed(b), class(b), speed(a));
        }
    }
    write(dir, "pairs.csv", pairs);
}

fn is_hidden(page: &str, id: &str) -> bool {
    let tag = page.split(&format!("id=\"{id}\"")).nth(1).expect("a section");
    tag.split('>').next().expect("a tag").contains("hidden")
}

#[test]
fn sharing_and_pair_rates_are_drawn() {
    if without_browser() {
        return;
    }
    let dir = folder();
    sharing_files(dir.path());
    let compare = ["compare", "--trace", "trace.csv", "--cluster", "1x4", "--out", "results"];
    let sharing = ["--policies", "sjf,sjf-ffs,sjf-bsbf", "--interference", "pairs.csv"];
    let beliefs = ["--beliefs", "online", "--train-pairs", "1"];
    succeed_in(dir.path(), &[&compare[..], &sharing, &beliefs].concat());
    let report = dir.path().join("results/report.html");
    let narrow = read(&report).replacen("</head>", "<style>html{width:360px}</style></head>", 1);
    write(dir.path(), "phone.html", narrow);
    for (report, width) in [(report, 1280), (dir.path().join("phone.html"), 360)] {
        let page = open(&report, width);
        assert_drawn(&page, 3, 60);
        assert!(!page.contains("<img"), "a name became an element");
        let count = |id: &str, mark: &str| section(&page, id).matches(mark).count();
        assert_eq!(count("chart-pairs", "<rect class=\"cell\""), 16);
        assert_eq!(count("chart-beliefs", "<circle class=\"pt\""), 15, "one pair does not fit");
        assert_eq!(count("chart-slowdown", "<path class=\"ln\""), 2, "two of three share");
        assert_eq!(count("sharing", "<option"), 2);
        assert!(count("sharing", "<tr") > 2, "pairs that shared");
        for id in ["sharing", "chart-slowdown", "chart-pairs", "chart-beliefs"] {
            assert!(!is_hidden(&page, id), "{id}");
        }
    }
    // Without a table, and where nobody shares, there is nothing to show.
    succeed_in(dir.path(), &[&compare[..], &["--policies", "sjf"]].concat());
    let page = open(&dir.path().join("results/report.html"), 1280);
    for id in ["sharing", "chart-slowdown", "chart-pairs", "chart-beliefs"] {
        assert!(is_hidden(&page, id), "{id}");
    }
}

/// Runs in the page after it has drawn, with all that is folded opened, and leaves what it finds in
/// attributes of the root element.
const MEASURE: &str = "<script>
const root = document.documentElement;
for (const details of document.querySelectorAll('details')) details.open = true;
const cut = [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth);
root.dataset.tables = document.querySelectorAll('.scroll').length;
root.dataset.cut = cut.length;
root.dataset.wide = root.scrollWidth > root.clientWidth;
const columns = [...document.querySelectorAll('table')].flatMap(table =>
  [...table.tHead.rows[0].cells].map((_, i) => [...table.tBodies[0].rows].map(row => row.cells[i].textContent)));
root.dataset.empty = columns.filter(column => column.every(text => text === '–')).length;
root.dataset.zeros = document.body.innerText.includes('0.00 times');
root.dataset.colours = new Set([...document.querySelectorAll('#chart-cdf .ln')].map(line => line.style.stroke)).size;
</script></body>";

#[test]
fn ten_policies_fit_a_page_of_1280_pixels_and_are_told_apart() {
    if without_browser() {
        return;
    }
    let dir = folder();
    let generate = ["trace", "generate", "--jobs", "400", "--gpus", "32", "--out", "trace.csv"];
    succeed_in(dir.path(), &generate);
    let compare = ["compare", "--trace", "trace.csv", "--cluster", "4x8", "--out", "results"];
    succeed_in(dir.path(), &compare);
    let report = read(&dir.path().join("results/report.html"));
    write(dir.path(), "measured.html", report.replacen("</body>", MEASURE, 1));
    let page = open(&dir.path().join("measured.html"), 1280);
    let root = &page[..page.find("<head").expect("a page")];
    for expected in [
        "tables=\"5\"",
        "cut=\"0\"",
        "wide=\"false\"",
        "empty=\"0\"",
        "zeros=\"false\"",
        "colours=\"10\"",
    ] {
        assert!(root.contains(&format!("data-{expected}")), "{expected} in {root}");
    }
    let table = section(&page, "summary");
    let rows: Vec<&str> = table.split("<tr").skip(2).collect();
    assert!(rows[0].contains(">tandem<"), "tandem is not in front: {}", rows[0]);
    let headline = page.split("id=\"headline\">").nth(1).expect("a headline");
    let headline = &headline[..headline.find("</p>").expect("it ends")];
    assert!(headline.contains("<b>tandem</b>"), "{headline}");
    assert!(headline.contains("the best policy that does not share GPUs"), "{headline}");
    assert!(!headline.contains("fifo"), "compared with the first policy: {headline}");
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
