//! The chart of `tandem bench fidelity`: each job's JCT on this machine against that in the simulator.

use super::PolicyFidelity;
use std::fmt::Write;

const SIZE: f64 = 440.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 6] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];

/// A scatter plot with logarithmic axes; jobs on the diagonal are predicted exactly.
pub(super) fn svg(policies: &[PolicyFidelity]) -> String {
    let all =
        || policies.iter().flat_map(|policy| policy.jobs.iter().flat_map(|job| [job.0, job.1]));
    let least = all().fold(f64::INFINITY, f64::min).max(0.01);
    let most = all().fold(0.0, f64::max).max(least * 1.1);
    let part = |value: f64| (value.max(least) / least).ln() / (most / least).ln() * SIZE;
    let (x, y) = (|value: f64| MARGIN + part(value), |value: f64| MARGIN + SIZE - part(value));
    let (right, bottom) = (MARGIN + SIZE, MARGIN + SIZE);
    let mut text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' font-family='sans-serif' \
         font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <path d='M{MARGIN} {MARGIN}V{bottom}H{right}' fill='none' stroke='#444'/>\n\
         <path d='M{MARGIN} {bottom}L{right} {MARGIN}' stroke='#999' stroke-dasharray='4'/>\n\
         <text x='{middle}' y='{label}' text-anchor='middle'>JCT on this machine, s</text>\n\
         <text transform='translate(16 {middle}) rotate(-90)' text-anchor='middle'>JCT in the simulator, s</text>\n",
        width = right + 210.0,
        height = bottom + MARGIN,
        middle = MARGIN + SIZE / 2.0,
        label = bottom + 40.0,
    );
    for decade in -2..6 {
        for step in [1.0, 2.0, 5.0] {
            let value = step * 10_f64.powi(decade);
            if (least..=most).contains(&value) {
                let _ = write!(
                    text,
                    "<text x='{}' y='{}' text-anchor='middle'>{value}</text>\n\
                     <text x='{}' y='{}' text-anchor='end'>{value}</text>\n",
                    x(value),
                    bottom + 18.0,
                    MARGIN - 8.0,
                    y(value) + 4.0,
                );
            }
        }
    }
    for (index, policy) in policies.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        for &(live, simulated) in &policy.jobs {
            let (x, y) = (x(live), y(simulated));
            let _ = writeln!(
                text,
                "<circle cx='{x:.1}' cy='{y:.1}' r='4' fill='{colour}' fill-opacity='0.6'/>"
            );
        }
        let at = MARGIN + 20.0 * index as f64;
        let name = policy.policy.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            text,
            "<circle cx='{cx}' cy='{at}' r='4' fill='{colour}'/><text x='{tx}' y='{ty}'>{name}</text>",
            cx = right + 20.0,
            tx = right + 30.0,
            ty = at + 4.0,
        );
    }
    text + "</svg>\n"
}
