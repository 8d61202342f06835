//! The chart of `tandem bench colocate`: latency against the promise, and the speed of the training.

use super::ColocateCell;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const ROW: f64 = 26.0;
const LABELS: f64 = 200.0;
const PANEL: f64 = 240.0;
const GAP: f64 = 30.0;
const TOP: f64 = 46.0;
/// The axis ends at this multiple of the promised latency.
const PROMISES_MAX: f64 = 3.0;

/// One row per rate and mode: p99 with its range beside the promise, then the training.
pub(super) fn svg(cells: &[ColocateCell], promise_ms: f64) -> String {
    let height = TOP + ROW * cells.len() as f64 + 16.0;
    let mut text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    let ms =
        |value: f64| LABELS + (value / promise_ms).clamp(0.0, PROMISES_MAX) / PROMISES_MAX * PANEL;
    let training = LABELS + PANEL + GAP;
    let speed = |value: f64| training + value.clamp(0.0, 1.0) * PANEL;
    let _ = write!(
        text,
        "<text x='{LABELS}' y='18'>p99 of one-second windows; the line is the promise, {promise_ms} ms</text>\n\
         <text x='{training}' y='36'>training, relative to alone</text>\n\
         <line x1='{x}' x2='{x}' y1='{TOP}' y2='{bottom}' stroke='#c00'/>\n",
        x = ms(promise_ms),
        bottom = height - 16.0,
    );
    for (index, cell) in cells.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let [p99, least, most] = cell.p99_ms.0;
        let fill = if cell.kept.median() >= 0.95 { "#2a7" } else { "#d63" };
        let _ = write!(
            text,
            "<text x='8' y='{label}'>{rate}/s {mode}, kept {kept:.0} %</text>\n\
             <rect x='{LABELS}' y='{bar}' width='{width}' height='14' fill='{fill}'/>\n\
             <line x1='{from}' x2='{to}' y1='{middle}' y2='{middle}' stroke='black'/>\n\
             <rect x='{training}' y='{bar}' width='{trained}' height='14' fill='#47b'/>\n",
            label = y + 15.0,
            rate = cell.rate,
            mode = cell.mode,
            kept = cell.kept.median() * 100.0,
            bar = y + 4.0,
            width = ms(p99) - LABELS,
            from = ms(least),
            to = ms(most),
            middle = y + 11.0,
            trained = speed(cell.training.median()) - training,
        );
    }
    text + "</svg>\n"
}
