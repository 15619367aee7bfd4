//! `report.svg`: latency and bandwidth over size, and below them the ratio B/A with its interval
//! over that of A/A.

use std::fmt::Write;

use crate::measure::metric::{Chart, Metric};
use crate::measure::sample::{Estimate, size_text};
use crate::report::table::repetitions;
use crate::results::judgement::Judgement;
use crate::results::record::Record;
use crate::results::rows::Row;

pub(super) const A: &str = "#c2571a";
pub(super) const B: &str = "#1b6ca8";
const NOISE: &str = "#777777";
pub(super) const HEADER: f64 = 96.0;
const PANEL: (f64, f64) = (450.0, 240.0);
const LEFT: f64 = 80.0;
pub(super) const COLUMN: f64 = 560.0;
pub(super) const ROW: f64 = 330.0;

const STYLE: &str = "text{font:13px 'DejaVu Sans',Verdana,sans-serif;fill:#222}\
    .title{font-weight:bold}.middle{text-anchor:middle}.end{text-anchor:end}\
    .grid{stroke:#ddd;stroke-width:1}.frame{fill:none;stroke:#888;stroke-width:1}";

/// The metrics that are drawn, from left to right.
fn charts() -> impl Iterator<Item = (Metric, Chart)> {
    Metric::ALL.iter().filter_map(|metric| Some((*metric, metric.info().chart?)))
}

/// The left end of the panels of a column; px.
fn left(column: usize) -> f64 {
    LEFT + COLUMN * column as f64
}

/// The whole picture.
pub(crate) fn draw(record: &Record) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    draw_into(record, &mut out).unwrap_or_default();
    out
}

fn draw_into(record: &Record, out: &mut String) -> std::fmt::Result {
    let two = record.sides.len() > 1;
    let width = COLUMN * charts().count() as f64;
    let height = HEADER + ROW * if two { 2.0 } else { 1.0 };
    open(width, height, out)?;
    legend(record, out)?;
    let drawn = |(metric, chart): &(Metric, Chart)| -> Vec<&Row> {
        let is_drawn =
            |row: &&Row| row.key.metric == *metric && row.key.direction == chart.direction;
        record.rows.iter().filter(is_drawn).collect()
    };
    for (column, chart) in charts().enumerate() {
        values(&drawn(&chart), column, (chart.1.title, chart.1.y_label), out)?;
    }
    for (column, chart) in charts().enumerate().filter(|_| two) {
        let drawn = drawn(&chart);
        let points: Vec<(u64, &Judgement)> =
            drawn.iter().map(|row| (row.key.bytes, &row.judgement)).collect();
        ratios(&points, (column, 1), chart.1.ratio_title, out)?;
    }
    writeln!(out, "</svg>")
}

/// The beginning of a picture of so many pixels.
pub(super) fn open(width: f64, height: f64, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="white"/>"##
    )
}

/// A line of the legend.
pub(super) fn entry(index: usize, color: &str, text: &str, out: &mut String) -> std::fmt::Result {
    /// Letters that fit beside the line.
    const ROOM: usize = 120;
    let y = 24.0 + 20.0 * index as f64;
    let text = match text.char_indices().nth(ROOM) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    writeln!(
        out,
        r##"<line x1="80" x2="110" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>
<text x="118" y="{}">{}</text>"##,
        y + 4.0,
        escape(&text)
    )
}

/// The line of the legend that says what the bands are: how certain intervals are, and of how many
/// of `what`.
pub(super) fn noise_entry(coverage: f64, what: &str, out: &mut String) -> std::fmt::Result {
    let text =
        format!("A/A, the noise; bands of ratios: {:.0} % intervals over {what}", coverage * 100.0);
    entry(2, NOISE, &text, out)
}

fn legend(record: &Record, out: &mut String) -> std::fmt::Result {
    for (index, side) in record.sides.iter().enumerate() {
        entry(index, [A, B][index % 2], &format!("{} = {}", side.label, side.title()), out)?;
    }
    if record.sides.len() > 1 {
        let coverage = record
            .rows
            .iter()
            .find_map(|row| row.judgement.ratio)
            .map_or(0.0, |ratio| ratio.coverage);
        noise_entry(coverage, &repetitions(record), out)?;
    }
    Ok(())
}

/// The panel's frame, with these message sizes on its x axis.
pub(super) fn panel(
    sizes: &[u64],
    column: usize,
    line: usize,
    title: &str,
    y_label: &str,
    y: Scale,
) -> Panel {
    let place = |bytes: &u64| (*bytes).max(1) as f64;
    let low = sizes.iter().map(place).fold(f64::INFINITY, f64::min);
    let high = sizes.iter().map(place).fold(0.0, f64::max);
    // A little air, so that the dots at the ends do not sit on the frame.
    let air = (high / low).powf(0.03);
    Panel {
        area: [left(column), HEADER + ROW * line as f64 + 20.0, PANEL.0, PANEL.1],
        title: title.into(),
        y_label: y_label.into(),
        x: Scale::log(low / air, high * air),
        x_ticks: sizes.iter().map(|bytes| (place(bytes), size_text(*bytes))).collect(),
        y,
    }
}

fn values(
    rows: &[&Row],
    column: usize,
    (title, y_label): (&str, &str),
    out: &mut String,
) -> std::fmt::Result {
    let Some(first) = rows.first() else { return Ok(()) };
    let headline = first.key.metric.info().headline;
    let mut curves = Vec::new();
    for (name, dashed) in [(headline, false), ("p99", true)] {
        curves.push(curve(rows, name, (A, dashed), |row| Some(&row.a)));
        curves.push(curve(rows, name, (B, dashed), |row| row.b.as_ref()));
    }
    let sizes: Vec<u64> = rows.iter().map(|row| row.key.bytes).collect();
    panel(&sizes, column, 0, title, y_label, around(&curves)).curves(&curves, out)
}

/// A scale that has room for these curves.
pub(super) fn around(curves: &[Curve]) -> Scale {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let top = points().map(|point| point.y).fold(0.0, f64::max);
    let bottom = points().map(|point| point.y).fold(f64::INFINITY, f64::min);
    Scale::log(bottom / 1.3, top * 1.3)
}

type Values = std::collections::BTreeMap<String, f64>;

fn curve<'r>(
    rows: &[&'r Row],
    name: &str,
    (color, dashed): (&'static str, bool),
    side: impl Fn(&'r Row) -> Option<&'r Values>,
) -> Curve {
    let points = rows.iter().filter_map(|row| {
        let y = *side(row)?.get(name)?;
        Some(Point { x: row.key.bytes.max(1) as f64, y, band: None })
    });
    Curve { color, dashed, points: points.collect() }
}

/// A scale for these ratios, on which twice as much is as far from 1 as half as much.
fn ratio_scale(ratios: &[f64]) -> Scale {
    let low = ratios.iter().copied().fold(0.95, f64::min);
    let high = ratios.iter().copied().fold(1.05, f64::max);
    let air = (high / low).powf(0.06);
    Scale::log(low / air, high * air)
}

/// The panel of ratios of these message sizes.
pub(super) fn ratios(
    rows: &[(u64, &Judgement)],
    (column, line): (usize, usize),
    title: &str,
    out: &mut String,
) -> std::fmt::Result {
    let estimates: Vec<Estimate> =
        rows.iter().flat_map(|(_, found)| [found.ratio, found.noise]).flatten().collect();
    if estimates.is_empty() {
        return Ok(());
    }
    let ends: Vec<f64> = estimates.iter().flat_map(|e| [e.low, e.high]).collect();
    let sizes: Vec<u64> = rows.iter().map(|(bytes, _)| *bytes).collect();
    let panel = panel(&sizes, column, line, title, "ratio, logarithmic", ratio_scale(&ends));
    panel.frame(out)?;
    panel.rule(1.0, out)?;
    for (color, dashed, pick) in [
        (NOISE, true, (|found: &Judgement| found.noise) as fn(&Judgement) -> Option<Estimate>),
        (B, false, |found: &Judgement| found.ratio),
    ] {
        let points = rows.iter().filter_map(|(bytes, found)| {
            let e = pick(found)?;
            Some(Point { x: (*bytes).max(1) as f64, y: e.median, band: Some((e.low, e.high)) })
        });
        panel.curve(&Curve { color, dashed, points: points.collect() }, out)?;
    }
    Ok(())
}

/// How values map to places on an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Equal steps for equal factors; both ends positive.
    pub(crate) fn log(low: f64, high: f64) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        let high = if high > low { high } else { low * 2.0 };
        Self { low, high }
    }

    /// Where a value lies, from 0 at the low end to 1 at the high end; clamped.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let fraction = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        fraction.clamp(0.0, 1.0)
    }

    /// Round values within the scale, three or more: powers of ten, with steps between them where
    /// these are few.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let ticks = |steps: &[f64]| -> Vec<f64> {
            let all = (first..=last)
                .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            all.filter(|tick| (self.low..=self.high).contains(tick)).collect()
        };
        let choices: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]];
        let enough = choices.into_iter().map(ticks).find(|ticks| ticks.len() >= 3);
        enough.unwrap_or_else(|| self.even_ticks())
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn even_ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 6.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .iter()
            .map(|factor| factor * unit)
            .find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(rough);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

/// A place on a curve, in data coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// Along the x axis.
    pub(crate) x: f64,
    /// Along the y axis.
    pub(crate) y: f64,
    /// Lower and upper edge of the band.
    pub(crate) band: Option<(f64, f64)>,
}

/// A curve with its band.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve {
    /// CSS colour.
    pub(crate) color: &'static str,
    /// Whether the line is dashed.
    pub(crate) dashed: bool,
    /// From left to right.
    pub(crate) points: Vec<Point>,
}

/// A rectangle with axes.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Left, top, width and height of the plotting area; px.
    pub(crate) area: [f64; 4],
    /// Above the panel.
    pub(crate) title: String,
    /// Beside the y axis.
    pub(crate) y_label: String,
    /// The x axis: message sizes.
    pub(crate) x: Scale,
    /// The labelled sizes.
    pub(crate) x_ticks: Vec<(f64, String)>,
    /// The y axis.
    pub(crate) y: Scale,
}

impl Panel {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let [left, top, width, height] = self.area;
        (left + width * self.x.place(x), top + height * (1.0 - self.y.place(y)))
    }

    /// Draws frame, ticks and labels.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn frame(&self, out: &mut String) -> std::fmt::Result {
        let [left, top, width, height] = self.area;
        let (right, bottom) = (left + width, top + height);
        writeln!(
            out,
            r##"<text x="{left}" y="{}" class="title">{}</text>"##,
            top - 10.0,
            escape(&self.title)
        )?;
        for tick in self.y.ticks() {
            let (_, y) = self.at(0.0, tick);
            writeln!(
                out,
                r##"<line x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}" class="grid"/>"##
            )?;
            writeln!(
                out,
                r##"<text x="{}" y="{:.1}" class="end">{}</text>"##,
                left - 6.0,
                y + 4.0,
                tick_text(tick)
            )?;
        }
        for (size, text) in &self.x_ticks {
            let (x, _) = self.at(*size, 0.0);
            writeln!(
                out,
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}" class="grid"/>"##
            )?;
            writeln!(
                out,
                r##"<text x="{x:.1}" y="{}" class="middle">{text}</text>"##,
                bottom + 17.0
            )?;
        }
        writeln!(
            out,
            r##"<rect x="{left}" y="{top}" width="{width}" height="{height}" class="frame"/>"##
        )?;
        let (x, y) = (left - 46.0, top + height / 2.0);
        writeln!(
            out,
            r##"<text x="{x}" y="{y}" class="middle" transform="rotate(-90 {x} {y})">{}</text>"##,
            escape(&self.y_label)
        )?;
        let middle = left + width / 2.0;
        writeln!(
            out,
            r##"<text x="{middle}" y="{}" class="middle">message size, bytes</text>"##,
            bottom + 36.0
        )
    }

    /// Draws the frame and what is not empty of these.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn curves(&self, curves: &[Curve], out: &mut String) -> std::fmt::Result {
        self.frame(out)?;
        curves
            .iter()
            .filter(|curve| !curve.points.is_empty())
            .try_for_each(|curve| self.curve(curve, out))
    }

    /// Draws a band and its line with dots.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn curve(&self, curve: &Curve, out: &mut String) -> std::fmt::Result {
        let edge = |points: &mut dyn Iterator<Item = (f64, f64)>| -> String {
            points.map(|(x, y)| self.at(x, y)).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
        };
        let banded: Vec<(f64, f64, f64)> = curve
            .points
            .iter()
            .filter_map(|point| point.band.map(|(low, high)| (point.x, low, high)))
            .collect();
        if banded.len() > 1 {
            let upper = edge(&mut banded.iter().map(|(x, _, high)| (*x, *high)));
            let lower = edge(&mut banded.iter().rev().map(|(x, low, _)| (*x, *low)));
            writeln!(
                out,
                r##"<polygon points="{upper}{lower}" fill="{}" opacity="0.2"/>"##,
                curve.color
            )?;
        }
        let line = edge(&mut curve.points.iter().map(|point| (point.x, point.y)));
        let dash = if curve.dashed { r#" stroke-dasharray="6 4""# } else { "" };
        writeln!(
            out,
            r##"<polyline points="{line}" fill="none" stroke="{}" stroke-width="2"{dash}/>"##,
            curve.color
        )?;
        for point in &curve.points {
            let (x, y) = self.at(point.x, point.y);
            writeln!(out, r##"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{}"/>"##, curve.color)?;
        }
        Ok(())
    }

    /// Draws a horizontal line through a value.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn rule(&self, value: f64, out: &mut String) -> std::fmt::Result {
        let [left, _, width, _] = self.area;
        let (_, y) = self.at(0.0, value);
        writeln!(
            out,
            r##"<line x1="{left}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="#222" stroke-width="1"/>"##,
            left + width
        )
    }
}

/// Text that XML takes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn tick_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample_record::sample_record;
    use crate::results::rows::Row;

    /// The labels of the y axes, panel by panel: a panel's are at one place.
    fn y_labels(picture: &str, x: f64) -> Vec<f64> {
        let start = format!("<text x=\"{x}\" ");
        let labels = picture
            .lines()
            .filter(|line| line.starts_with(&start) && line.contains("class=\"end\""));
        labels.filter_map(|line| line.split('>').nth(1)?.split('<').next()?.parse().ok()).collect()
    }

    #[test]
    fn narrow_latencies_and_ratios_have_labels_enough() {
        let mut record = sample_record();
        let wider = |factor: f64, bytes: u64| {
            let mut row: Row = record.rows[1].clone();
            row.key.bytes = bytes;
            row.a.insert("typ".into(), 1.1 * factor);
            row.b = Some(row.a.clone());
            row
        };
        let more = [wider(1.2, 64), wider(1.5, 4096)];
        record.rows.extend(more);
        let labels = y_labels(&draw(&record), LEFT - 6.0);
        // Latency and, below it, its ratio.
        let (latency, ratio): (Vec<f64>, Vec<f64>) =
            labels.iter().partition(|label| **label >= 1.2);
        assert!(latency.len() >= 3 && ratio.len() >= 3, "{labels:?}");
    }

    #[test]
    fn half_and_twice_are_as_far_from_one() {
        let scale = ratio_scale(&[0.5, 2.0]);
        assert!((scale.place(1.0) - 0.5).abs() < 1e-9);
        assert!((scale.place(0.5) + scale.place(2.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_long_title_fits_into_the_picture() {
        let mut record = sample_record();
        record.sides[1].version = Some("1".repeat(300));
        let picture = draw(&record);
        let legend = picture.lines().filter(|line| line.starts_with("<text x=\"118\""));
        // 13 px letters are 8 px wide on average.
        for line in legend {
            let text =
                line.split('>').nth(1).and_then(|rest| rest.split('<').next()).expect("a text");
            assert!(
                text.chars().count() as f64 * 8.0 + 118.0 <= COLUMN * charts().count() as f64,
                "{text}"
            );
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale { low: 0.0, high: 10.0 }.even_ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::log(0.02, 30.0).ticks(), [0.1, 1.0, 10.0]);
        assert_eq!(Scale::log(4.0, 60.0).ticks(), [5.0, 10.0, 20.0, 50.0]);
        // As narrow as latencies of 8 B to 4 KiB are, and ratios near 1.
        assert_eq!(Scale::log(1.1, 3.6).ticks(), [1.5, 2.0, 3.0]);
        let near: Vec<String> =
            Scale::log(0.94, 1.07).ticks().iter().map(|tick| tick_text(*tick)).collect();
        assert_eq!(near, ["0.95", "1", "1.05"]);
        let texts: Vec<String> = Scale { low: 0.55, high: 1.6 }
            .even_ticks()
            .iter()
            .map(|tick| tick_text(*tick))
            .collect();
        assert_eq!(texts, ["0.6", "0.8", "1", "1.2", "1.4", "1.6"]);
    }

    #[test]
    fn places_are_clamped() {
        let scale = Scale::log(1.0, 100.0);
        assert_eq!(scale.place(10.0), 0.5);
        assert_eq!(scale.place(0.1), 0.0);
        assert_eq!(Scale::log(2.0, 2.0).place(9.0), 1.0);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("0->1 <&>"), "0-&gt;1 &lt;&amp;&gt;");
    }
}
