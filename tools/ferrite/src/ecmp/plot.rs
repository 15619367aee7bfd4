//! The rows as bars, in SVG: one bar for each policy, as long as its slowest group is fast, with a mark at the worst seed.

use std::fmt::Write;

use crate::ecmp::report::heading;
use crate::ecmp::scenario::{Row, Scenario};
use crate::report::svg::escape;

const STYLE: &str = "text{font:13px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.small{font-size:11px}\
    .end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#ddd;stroke-width:1}.worst{stroke:#222;stroke-width:2}";
/// What the built-in transport does, and what lanes do.
const BUILT_IN: &str = "#c2571a";
const LANES: &str = "#1b6ca8";
/// Left end of the bars, and how long a share of 1 is; px.
const LEFT: f64 = 90.0;
const LENGTH: f64 = 480.0;
/// Top of the first bar, and from one bar to the next; px.
const TOP: f64 = 74.0;
const PITCH: f64 = 28.0;
const BAR: f64 = 18.0;
/// Letters in a line of the heading.
const LINE: usize = 88;

/// The picture.
pub(crate) fn draw(scenario: &Scenario, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    draw_into(&heading(scenario), rows, &mut out).unwrap_or_default();
    out
}

fn draw_into(heading: &str, rows: &[Row], out: &mut String) -> std::fmt::Result {
    let bottom = TOP + PITCH * rows.len() as f64;
    let (width, height) = (LEFT + LENGTH * 1.1 + 60.0, bottom + 34.0);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="20">Slowest group, as a share of a fabric that spreads every packet (mark: worst seed)</text>"#
    )?;
    for (number, line) in lines(heading).iter().enumerate() {
        writeln!(out, r#"<text x="10" y="{}" class="small">{}</text>"#, 38 + 15 * number, escape(line))?;
    }
    for tick in 0..=4 {
        let (share, top) = (f64::from(tick) / 4.0, TOP - 6.0);
        let x = LEFT + LENGTH * share;
        writeln!(out, r#"<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" class="grid"/>"#)?;
        writeln!(out, r#"<text x="{x}" y="{}" class="small middle">{share}</text>"#, bottom + 16.0)?;
    }
    rows.iter().enumerate().try_for_each(|(number, row)| bar(row, TOP + PITCH * number as f64, out))?;
    writeln!(out, "</svg>")
}

fn bar(row: &Row, top: f64, out: &mut String) -> std::fmt::Result {
    let length = |share: f64| LENGTH * share.clamp(0.0, 1.1);
    let is_lanes = row.policy.starts_with("shares") || row.policy.starts_with("moves");
    let (color, baseline) = (if is_lanes { LANES } else { BUILT_IN }, top + BAR - 4.0);
    let (long, worst) = (length(row.slowest), LEFT + length(row.worst));
    writeln!(out, r#"<text x="{}" y="{baseline}" class="end">{}</text>"#, LEFT - 8.0, escape(&row.policy))?;
    writeln!(out, r#"<rect x="{LEFT}" y="{top}" width="{long:.1}" height="{BAR}" fill="{color}"/>"#)?;
    writeln!(out, r#"<line x1="{worst:.1}" x2="{worst:.1}" y1="{top}" y2="{}" class="worst"/>"#, top + BAR)?;
    writeln!(out, r#"<text x="{:.1}" y="{baseline}">{:.2}</text>"#, LEFT + long + 6.0, row.slowest)
}

/// The text in two lines at most, cut between words.
fn lines(text: &str) -> Vec<&str> {
    match text.char_indices().nth(LINE).and_then(|(end, _)| text[..end].rfind(' ')) {
        Some(cut) => vec![&text[..cut], &text[cut + 1..]],
        None => vec![text],
    }
}
