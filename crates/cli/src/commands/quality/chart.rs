//! The chart: for every trace and table a panel, with the mean JCT of the sharing policies by load,
//! relative to the best exclusive policy. One SVG that needs nothing else and follows light and dark.

use super::case::{CaseResults, QualityCase};
use super::inputs::{Inputs, TableSource, TraceSource};
use super::plan::QualityPlan;
use std::fmt::Write;

/// Size of a panel's plot, and margins.
const WIDTH: f64 = 212.0;
const HEIGHT: f64 = 132.0;
const GAP_X: f64 = 26.0;
const GAP_Y: f64 = 44.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 126.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 52.0;
/// Least width of a legend entry.
const ENTRY: f64 = 118.0;
/// Relative JCT at the top of a plot; higher values are clipped.
const CEILING: f64 = 1.5;
const TICKS: [f64; 4] = [0.0, 0.5, 1.0, 1.5];
/// Longer titles are cut.
const TITLE_LETTERS: usize = 14;
/// Number of policies after which colours and markers repeat.
const LOOKS: usize = 6;

const STYLE: &str = "\
:root{--ground:#fff;--ink:#1c2330;--soft:#5b6577;--line:#dfe3ea;--plot:#f7f8fa;--bound:#e3e7ee;\
--c0:#0b63c5;--c1:#c2480e;--c2:#1a7f4b;--c3:#8a3fc7;--c4:#a06a00;--c5:#0d7c86}\
@media(prefers-color-scheme:dark){:root{--ground:#12161d;--ink:#e8ecf3;--soft:#9aa5b8;--line:#2c3442;\
--plot:#181d26;--bound:#283041;--c0:#6fb1ff;--c1:#ff9a62;--c2:#5fd497;--c3:#cf9cff;--c4:#f0c04a;--c5:#5fd3dd}}\
.ground{fill:var(--ground)}.plot{fill:var(--plot)}.bound{fill:var(--bound)}\
.rule{stroke:var(--line);stroke-width:1}.par{stroke:var(--soft);stroke-width:1.25}\
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--ink)}\
.soft{fill:var(--soft);font-size:11px}.head{font-weight:600}.title{font-size:16px;font-weight:600}\
.series{fill:none;stroke-width:1.75;stroke-linejoin:round}.judged{stroke-width:3.25}.spread{stroke-dasharray:4 3}\
.end{text-anchor:end}.middle{text-anchor:middle}";

pub(super) fn draw(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults) -> String {
    let (columns, rows) = (inputs.traces.len() as f64, inputs.tables.len() as f64);
    let width = (LEFT + columns * (WIDTH + GAP_X) - GAP_X + RIGHT).max(560.0);
    let looks = Looks::new(plan);
    let (legend, legend_height) = legend(&looks, plan, width);
    let top = TOP + legend_height;
    let height = top + rows * (HEIGHT + GAP_Y) - GAP_Y + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">Mean JCT relative to the best exclusive policy</title>\n\
         <desc id=\"d\">One panel per trace and table of pair rates; the load grows from left to right, below 100 % sharing pays.</desc>\n\
         <style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"34\">Mean job completion time relative to the best exclusive policy</text>\n\
         <text class=\"soft\" x=\"{LEFT}\" y=\"54\">Lower is better; below 100 % sharing pays. Grey is out of reach for every policy; above 150 % a line leaves its plot.</text>\n"
    );
    svg += &legend;
    for (row, table) in inputs.tables.iter().enumerate() {
        for (column, trace) in inputs.traces.iter().enumerate() {
            let corner =
                (LEFT + column as f64 * (WIDTH + GAP_X), top + row as f64 * (HEIGHT + GAP_Y));
            let panel = ChartPanel { plan, found, looks: &looks, corner, trace, table };
            svg += &panel.draw(column == 0, row + 1 == inputs.tables.len());
        }
    }
    svg += "</svg>\n";
    svg
}

/// Styles of the policies, the judged one first.
struct Looks<'a>(Vec<&'a str>);

impl<'a> Looks<'a> {
    fn new(plan: &'a QualityPlan) -> Self {
        let judged = plan.judged.as_deref();
        let first = plan.sharing().filter(|name| Some(*name) == judged);
        let others = plan.sharing().filter(|name| Some(*name) != judged);
        Self(first.chain(others).collect())
    }

    fn marker(look: usize, x: f64, y: f64) -> String {
        let colour = format!("style=\"fill:var(--c{})\"", look % LOOKS);
        match look % 4 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" {colour}/>"),
            1 => format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\" {colour}/>",
                x - 3.0,
                y - 3.0
            ),
            2 => format!("<path d=\"M{x:.1} {:.1}l3.8 6.6h-7.6z\" {colour}/>", y - 3.8),
            _ => format!("<path d=\"M{x:.1} {:.1}l4 4-4 4-4-4z\" {colour}/>", y - 4.0),
        }
    }
}

/// The legend, and its height beyond the first line.
fn legend(looks: &Looks<'_>, plan: &QualityPlan, width: f64) -> (String, f64) {
    let mut entries: Vec<(String, String)> = Vec::new();
    for (look, name) in looks.0.iter().enumerate() {
        let judged = plan.judged.as_deref() == Some(*name);
        entries.push((
            series(look, judged, false, "M0 0h22") + &Looks::marker(look, 11.0, 0.0),
            escape(name),
        ));
    }
    entries.push(("<path class=\"par\" d=\"M0 0h22\"/>".to_owned(), "best exclusive".to_owned()));
    if let (Some(judged), Some(spread)) = (&plan.judged, plan.spreads.get(1)) {
        entries.push((
            series(0, true, true, "M0 0h22"),
            format!("{}, spread {spread}", escape(judged)),
        ));
    }
    let (mut text, mut x, mut y) = (String::new(), LEFT, 80.0);
    for (sample, name) in entries {
        let room = ENTRY.max(44.0 + 7.0 * name.chars().count() as f64);
        if x + room > width - RIGHT + 20.0 {
            (x, y) = (LEFT, y + 22.0);
        }
        let _ = writeln!(
            text,
            "<g transform=\"translate({x:.0} {y:.0})\">{sample}<text x=\"29\" y=\"4\">{name}</text></g>"
        );
        x += room;
    }
    (text, y - 80.0)
}

fn series(look: usize, judged: bool, spread: bool, path: &str) -> String {
    let mut class = "series".to_owned();
    class += if judged { " judged" } else { "" };
    class += if spread { " spread" } else { "" };
    let look = look % LOOKS;
    format!("<path class=\"{class}\" style=\"stroke:var(--c{look})\" d=\"{path}\"/>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A title that leaves room for what stands beside it.
fn shortened(title: &str) -> String {
    match title.char_indices().nth(TITLE_LETTERS) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title.to_owned(),
    }
}

/// The plot of one trace and table.
struct ChartPanel<'a> {
    plan: &'a QualityPlan,
    found: &'a CaseResults,
    looks: &'a Looks<'a>,
    corner: (f64, f64),
    trace: &'a TraceSource,
    table: &'a TableSource,
}

impl ChartPanel<'_> {
    fn draw(&self, first: bool, last: bool) -> String {
        let (left, top) = self.corner;
        let clip = format!("clip-{left:.0}-{top:.0}");
        let frame = format!("x=\"{left:.1}\" y=\"{top:.1}\" width=\"{WIDTH}\" height=\"{HEIGHT}\"");
        let mut svg = format!(
            "<g><text class=\"head\" x=\"{left:.1}\" y=\"{:.1}\">{}</text><text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
             <clipPath id=\"{clip}\"><rect {frame}/></clipPath><rect class=\"plot\" {frame}/>\n",
            top - 9.0,
            escape(&shortened(&self.trace.title)),
            left + WIDTH,
            top - 9.0,
            escape(self.table.title)
        );
        svg += &format!("<g clip-path=\"url(#{clip})\">");
        if let Some(spread) = self.plan.spreads.first() {
            svg += &self.bound(spread);
        }
        svg += "</g>\n";
        svg += &self.axes(first, last);
        svg += &format!("<g clip-path=\"url(#{clip})\">\n");
        // The judged policy comes first and is drawn last, above all others.
        for (look, name) in self.looks.0.iter().enumerate().rev() {
            svg += &self.lines(look, name);
        }
        svg += "</g></g>\n";
        svg
    }

    fn axes(&self, first: bool, last: bool) -> String {
        let (left, top) = self.corner;
        let mut svg = String::new();
        for tick in TICKS {
            let (y, class) = (self.y(tick), if tick == 1.0 { "par" } else { "rule" });
            svg += &format!("<path class=\"{class}\" d=\"M{left:.1} {y:.1}h{WIDTH}\"/>");
            if first {
                svg += &format!(
                    "<text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">{:.0} %</text>",
                    left - 8.0,
                    y + 4.0,
                    tick * 100.0
                );
            }
        }
        for (index, load) in self.plan.loads.iter().enumerate() {
            let x = self.x(index);
            svg += &format!(
                "<text class=\"soft middle\" x=\"{x:.1}\" y=\"{:.1}\">×{load}</text>",
                top + HEIGHT + 16.0
            );
        }
        if last {
            svg += &format!(
                "<text class=\"soft middle\" x=\"{:.1}\" y=\"{:.1}\">load</text>",
                left + WIDTH / 2.0,
                top + HEIGHT + 34.0
            );
        }
        svg + "\n"
    }

    /// The area below the lower bounds of all policies.
    fn bound(&self, spread: &str) -> String {
        let least = self.points(spread, |case| self.found.least(case, self.plan.names()));
        let Some(first) = least.first() else { return String::new() };
        // To the edges, so that a single load shows too.
        let (left, floor) = (self.corner.0, self.y(0.0));
        let mut path = format!("M{left:.1} {floor:.1}V{:.1}", first.1);
        least.iter().for_each(|(x, y)| path += &format!("L{x:.1} {y:.1}"));
        path += &format!("H{:.1}V{floor:.1}z", left + WIDTH);
        format!("<path class=\"bound\" d=\"{path}\"/>")
    }

    /// The series of a policy; that of the judged one for every spread penalty.
    fn lines(&self, look: usize, name: &str) -> String {
        let judged = self.plan.judged.as_deref() == Some(name);
        let shown = if judged { self.plan.spreads.len() } else { 1 };
        let mut svg = String::new();
        for (index, spread) in self.plan.spreads.iter().take(shown).enumerate() {
            let points = self.points(spread, |case| self.found.mean(case, name));
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            svg += &series(look, judged, index > 0, &format!("M{}", path.join("L")));
            if index == 0 {
                svg.extend(points.iter().map(|(x, y)| Looks::marker(look, *x, *y)));
            }
            svg.push('\n');
        }
        svg
    }

    /// Where the values of this panel lie, relative to the best exclusive policy, or to the best of all
    /// where there is none.
    fn points(&self, spread: &str, value: impl Fn(&QualityCase) -> f64) -> Vec<(f64, f64)> {
        let here = |case: &&QualityCase| {
            case.trace == self.trace.name && case.table == self.table.name && case.spread == spread
        };
        let cases = self.plan.grid.iter().filter(here).enumerate();
        let point = |(index, case): (usize, &QualityCase)| {
            let exclusive = self.found.best(case, self.plan.exclusive());
            let (_, par) = exclusive.or_else(|| self.found.best(case, self.plan.names()))?;
            Some((self.x(index), self.y(value(case) / par)))
        };
        cases.filter_map(point).collect()
    }

    fn x(&self, load: usize) -> f64 {
        let steps = self.plan.loads.len().max(1) as f64;
        self.corner.0 + WIDTH * (load as f64 + 0.5) / steps
    }

    fn y(&self, relative: f64) -> f64 {
        // Far above the plot is above the plot.
        self.corner.1 + HEIGHT * (1.0 - relative.min(10.0) / CEILING)
    }
}
