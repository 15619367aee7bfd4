//! Rows as bars, in SVG: one panel for each run, in it one bar for each policy, as long as its slowest group is fast, with a mark at the
//! worst seed.

use std::fmt::Write;

use crate::ecmp::results::Named;
use crate::ecmp::scenario::Row;
use crate::report::svg::escape;

const STYLE: &str = "text{font:11px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.title{font-size:13px}\
    .end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#ddd;stroke-width:1}.worst{stroke:#222;stroke-width:2}";
/// What the built-in transport does, and what lanes do.
const BUILT_IN: &str = "#c2571a";
const LANES: &str = "#1b6ca8";
/// Panels side by side.
const COLUMNS: usize = 2;
/// Of a panel: its width, left end of the bars, and how long a share of 1 is; px.
const WIDTH: f64 = 460.0;
const LEFT: f64 = 70.0;
const LENGTH: f64 = 320.0;
/// Top of the first panel; from the top of a panel to its first bar, from one bar to the next, and what is below the last one; px.
const TOP: f64 = 30.0;
const HEAD: f64 = 26.0;
const PITCH: f64 = 15.0;
const BAR: f64 = 11.0;
const FOOT: f64 = 26.0;

/// The picture.
pub(crate) fn draw(panels: &[Named]) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    draw_into(panels, &mut out).unwrap_or_default();
    out
}

fn draw_into(panels: &[Named], out: &mut String) -> std::fmt::Result {
    let most = panels.iter().map(|panel| panel.rows().count()).max().unwrap_or(0);
    let height = HEAD + PITCH * most as f64 + FOOT;
    let lines = panels.len().div_ceil(COLUMNS);
    let (width, all) = (WIDTH * panels.len().clamp(1, COLUMNS) as f64, TOP + height * lines as f64);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{all}" viewBox="0 0 {width} {all}">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="20" class="title">Slowest group, as a share of a fabric that spreads packets (mark: worst seed)</text>"#
    )?;
    panels.iter().enumerate().try_for_each(|(number, panel)| {
        let left = WIDTH * (number % COLUMNS) as f64;
        draw_panel(panel, left, TOP + height * (number / COLUMNS) as f64, out)
    })?;
    writeln!(out, "</svg>")
}

fn draw_panel(panel: &Named, left: f64, top: f64, out: &mut String) -> std::fmt::Result {
    let (first, left) = (top + HEAD, left + LEFT);
    let bottom = first + PITCH * panel.rows().count() as f64;
    writeln!(out, r#"<text x="{left}" y="{}" class="title">{}</text>"#, top + 16.0, escape(&panel.name))?;
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        let x = left + LENGTH * share;
        writeln!(out, r#"<line x1="{x}" x2="{x}" y1="{}" y2="{bottom}" class="grid"/>"#, first - 4.0)?;
        writeln!(out, r#"<text x="{x}" y="{}" class="middle">{share}</text>"#, bottom + 12.0)?;
    }
    panel.rows().enumerate().try_for_each(|(number, row)| bar(row, left, first + PITCH * number as f64, out))
}

fn bar(row: &Row, left: f64, top: f64, out: &mut String) -> std::fmt::Result {
    let length = |share: f64| LENGTH * share.clamp(0.0, 1.1);
    let is_lanes = row.policy.starts_with("shares") || row.policy.starts_with("moves");
    let (color, baseline) = (if is_lanes { LANES } else { BUILT_IN }, top + BAR - 2.0);
    let (long, worst) = (length(row.slowest), left + length(row.worst));
    writeln!(out, r#"<text x="{}" y="{baseline}" class="end">{}</text>"#, left - 6.0, escape(&row.policy))?;
    writeln!(out, r#"<rect x="{left}" y="{top}" width="{long:.1}" height="{BAR}" fill="{color}"/>"#)?;
    writeln!(out, r#"<line x1="{worst:.1}" x2="{worst:.1}" y1="{top}" y2="{}" class="worst"/>"#, top + BAR)?;
    writeln!(out, r#"<text x="{:.1}" y="{baseline}">{:.2}</text>"#, left + long + 6.0, row.slowest)
}
