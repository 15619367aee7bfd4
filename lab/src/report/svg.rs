//! A panel with axes, as SVG text: scales, ticks, lines and bands.

use std::fmt::Write;

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

    /// Round values within the scale, three or more: powers of ten, with steps between them where these are few.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let ticks = |steps: &[f64]| -> Vec<f64> {
            let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
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
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * unit).find(|step| *step >= rough * 0.999);
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
        writeln!(out, r##"<text x="{left}" y="{}" class="title">{}</text>"##, top - 10.0, escape(&self.title))?;
        for tick in self.y.ticks() {
            let (_, y) = self.at(0.0, tick);
            writeln!(out, r##"<line x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}" class="grid"/>"##)?;
            writeln!(out, r##"<text x="{}" y="{:.1}" class="end">{}</text>"##, left - 6.0, y + 4.0, tick_text(tick))?;
        }
        for (size, text) in &self.x_ticks {
            let (x, _) = self.at(*size, 0.0);
            writeln!(out, r##"<line x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}" class="grid"/>"##)?;
            writeln!(out, r##"<text x="{x:.1}" y="{}" class="middle">{text}</text>"##, bottom + 17.0)?;
        }
        writeln!(out, r##"<rect x="{left}" y="{top}" width="{width}" height="{height}" class="frame"/>"##)?;
        let (x, y) = (left - 46.0, top + height / 2.0);
        writeln!(
            out,
            r##"<text x="{x}" y="{y}" class="middle" transform="rotate(-90 {x} {y})">{}</text>"##,
            escape(&self.y_label)
        )?;
        let middle = left + width / 2.0;
        writeln!(out, r##"<text x="{middle}" y="{}" class="middle">message size, bytes</text>"##, bottom + 36.0)
    }

    /// Draws the frame and what is not empty of these.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn curves(&self, curves: &[Curve], out: &mut String) -> std::fmt::Result {
        self.frame(out)?;
        curves.iter().filter(|curve| !curve.points.is_empty()).try_for_each(|curve| self.curve(curve, out))
    }

    /// Draws a band and its line with dots.
    ///
    /// # Errors
    /// None that a String gives.
    pub(crate) fn curve(&self, curve: &Curve, out: &mut String) -> std::fmt::Result {
        let edge = |points: &mut dyn Iterator<Item = (f64, f64)>| -> String {
            points.map(|(x, y)| self.at(x, y)).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
        };
        let banded: Vec<(f64, f64, f64)> =
            curve.points.iter().filter_map(|point| point.band.map(|(low, high)| (point.x, low, high))).collect();
        if banded.len() > 1 {
            let upper = edge(&mut banded.iter().map(|(x, _, high)| (*x, *high)));
            let lower = edge(&mut banded.iter().rev().map(|(x, low, _)| (*x, *low)));
            writeln!(out, r##"<polygon points="{upper}{lower}" fill="{}" opacity="0.2"/>"##, curve.color)?;
        }
        let line = edge(&mut curve.points.iter().map(|point| (point.x, point.y)));
        let dash = if curve.dashed { r#" stroke-dasharray="6 4""# } else { "" };
        writeln!(out, r##"<polyline points="{line}" fill="none" stroke="{}" stroke-width="2"{dash}/>"##, curve.color)?;
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

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale { low: 0.0, high: 10.0 }.even_ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::log(0.02, 30.0).ticks(), [0.1, 1.0, 10.0]);
        assert_eq!(Scale::log(4.0, 60.0).ticks(), [5.0, 10.0, 20.0, 50.0]);
        // As narrow as latencies of 8 B to 4 KiB are, and ratios near 1.
        assert_eq!(Scale::log(1.1, 3.6).ticks(), [1.5, 2.0, 3.0]);
        let near: Vec<String> = Scale::log(0.94, 1.07).ticks().iter().map(|tick| tick_text(*tick)).collect();
        assert_eq!(near, ["0.95", "1", "1.05"]);
        let texts: Vec<String> =
            Scale { low: 0.55, high: 1.6 }.even_ticks().iter().map(|tick| tick_text(*tick)).collect();
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
