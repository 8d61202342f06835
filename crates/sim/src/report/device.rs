//! A page that shows the SMs of one GPU by tenant over time, one chart per sharing mode. Self-contained,
//! without scripts.

use super::escape_html;
use std::fmt::Write;
use tandem_models::device::SmSegment;

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 180.0;
/// Okabe and Ito's colours, which most people can distinguish.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

/// One chart.
#[derive(Clone, Debug)]
pub struct DevicePanel {
    /// Its title.
    pub title: String,
    /// In order of time.
    pub segments: Vec<SmSegment>,
}

/// Draws the page.
pub fn chart(
    gpu: &str,
    sms: u32,
    tenants: &[&str],
    span_ms: f64,
    panels: &[DevicePanel],
) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Tandem: one GPU</title>\
         <style>body{font:14px system-ui,sans-serif;margin:2em;max-width:1180px}svg{display:block;\
         background:#f4f4f4;width:100%}h2{font-size:1em;margin:1.5em 0 .3em}\
         .key{display:inline-block;width:1em;height:1em;vertical-align:-.15em;margin:0 .3em 0 1em}\
         text{font-size:11px;fill:#555}</style>",
    );
    let _ =
        write!(page, "<h1>{} SMs of a {}, the first {span_ms} ms</h1><p>", sms, escape_html(gpu));
    for (index, tenant) in tenants.iter().enumerate() {
        let (colour, name) = (colour(index), escape_html(tenant));
        let _ = write!(page, "<span class=\"key\" style=\"background:{colour}\"></span>{name}");
    }
    page.push_str("</p>");
    for panel in panels {
        draw(&mut page, panel, sms, span_ms);
    }
    page.push_str("</html>\n");
    page
}

fn colour(tenant: usize) -> &'static str {
    COLOURS[tenant % COLOURS.len()]
}

fn draw(page: &mut String, panel: &DevicePanel, sms: u32, span_ms: f64) {
    let title = escape_html(&panel.title);
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<h2>{title}</h2><svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">",
        HEIGHT + 16.0
    );
    let per_ns = WIDTH / (span_ms * 1e6);
    let per_sm = HEIGHT / f64::from(sms);
    // The segments of one time span begin together and are stacked from below, each tenant at its position.
    for span in panel.segments.chunk_by(|a, b| a.from_ns == b.from_ns) {
        let mut below = 0.0;
        let mut span: Vec<&SmSegment> = span.iter().collect();
        span.sort_by_key(|segment| segment.tenant);
        for segment in span {
            let (x, width) = (segment.from_ns * per_ns, (segment.to_ns - segment.from_ns) * per_ns);
            let height = segment.sms * per_sm;
            below += height;
            let (y, colour) = (HEIGHT - below, colour(segment.tenant));
            let _ = write!(
                page,
                "<path fill=\"{colour}\" d=\"M{x:.2} {y:.1}h{width:.2}v{height:.1}h-{width:.2}z\"/>"
            );
        }
    }
    for tick in 0..=5 {
        let ms = span_ms * f64::from(tick) / 5.0;
        let x = (WIDTH * f64::from(tick) / 5.0).min(WIDTH - 40.0);
        let _ = write!(page, "<text x=\"{x:.0}\" y=\"{}\">{ms:.1} ms</text>", HEIGHT + 13.0);
    }
    page.push_str("</svg>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_page_and_every_segment_is_drawn() {
        let segment =
            |tenant, from_ns, sms| SmSegment { tenant, from_ns, to_ns: from_ns + 1e5, sms };
        let segments = vec![segment(0, 0.0, 40.0), segment(1, 0.0, 20.0), segment(1, 1e5, 80.0)];
        let panel = DevicePanel { title: "a < b".to_owned(), segments };
        let page = chart("v100", 80, &["<script>", "b"], 1.0, &[panel]);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert_eq!(page.matches("<path").count(), 3);
        // The second is stacked on the first: 60 of 80 SMs high, 45 of 180 from the top.
        assert!(page.contains("M0.00 45.0h110.00v45.0"), "{page}");
    }
}
