//! `report.svg`: the ratios B/A of groups and rows, with their intervals, around 1.

use std::fmt::Write;

use crate::results::judgement::{Finding, Judgement};

const WIDTH: f64 = 920.0;
const LEFT: f64 = 200.0;
const RIGHT: f64 = WIDTH - 325.0;
const LINE: f64 = 24.0;
/// Letters of 13 pixels that fit into the picture.
const LETTERS: usize = 110;

const STYLE: &str = "text{font:13px 'DejaVu Sans',Verdana,sans-serif;fill:#222}\
    .title{font-weight:bold;font-size:16px}.group{font-weight:bold}.middle{text-anchor:middle}\
    .end{text-anchor:end}.grid{stroke:#ddd}.one{stroke:#222}";

/// A line of the picture.
pub(super) struct Bar<'r> {
    pub(super) name: String,
    /// Rows that are judged together.
    pub(super) is_group: bool,
    pub(super) judgement: &'r Judgement,
    /// The statement.
    pub(super) words: String,
}

/// The picture, with what stands above it: the first line is its title.
pub(super) fn draw(head: &[String], bars: &[Bar<'_>]) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    draw_into(head, bars, &mut out).unwrap_or_default();
    out
}

fn draw_into(head: &[String], bars: &[Bar<'_>], out: &mut String) -> std::fmt::Result {
    let top = 20.0 + LINE * head.len() as f64 + LINE;
    let bottom = top + LINE * bars.len() as f64;
    let height = bottom + 2.0 * LINE;
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="white"/>"##
    )?;
    for (index, text) in head.iter().enumerate() {
        let class = if index == 0 { r#" class="title""# } else { "" };
        let y = 24.0 + LINE * index as f64;
        writeln!(out, r##"<text x="20" y="{y}"{class}>{}</text>"##, escape(&short(text)))?;
    }
    let scale = Scale::around(bars);
    for tick in scale.ticks() {
        let (x, class) = (scale.place(tick), if tick == 1.0 { "one" } else { "grid" });
        writeln!(
            out,
            r##"<line x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}" class="{class}"/>
<text x="{x:.1}" y="{}" class="middle">{}</text>"##,
            bottom + 18.0,
            tick_text(tick)
        )?;
    }
    writeln!(
        out,
        r##"<text x="{}" y="{}" class="middle">B/A, logarithmic: times are better below 1, rates above</text>"##,
        f64::midpoint(LEFT, RIGHT),
        bottom + 38.0
    )?;
    for (index, bar) in bars.iter().enumerate() {
        let y = top + LINE * (index as f64 + 0.5);
        let class = if bar.is_group { " group" } else { "" };
        writeln!(
            out,
            r##"<text x="{}" y="{}" class="end{class}">{}</text>"##,
            LEFT - 12.0,
            y + 4.0,
            escape(&bar.name)
        )?;
        let Some(ratio) = bar.judgement.ratio else { continue };
        let color = match bar.judgement.finding {
            Finding::Better => "#1b7f3b",
            Finding::Worse => "#c2261a",
            Finding::Same => "#1b6ca8",
            Finding::Undecided => "#999999",
        };
        let width = if bar.is_group { 4 } else { 2 };
        writeln!(
            out,
            r##"<line x1="{:.1}" x2="{:.1}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="{width}"/>
<circle cx="{:.1}" cy="{y}" r="{}" fill="{color}"/>
<text x="{}" y="{}"{}>{}</text>"##,
            scale.place(ratio.low),
            scale.place(ratio.high),
            scale.place(ratio.median),
            width + 1,
            RIGHT + 12.0,
            y + 4.0,
            if bar.is_group { r#" class="group""# } else { "" },
            escape(bar.words.split([';', '[']).next().unwrap_or_default().trim_end())
        )?;
    }
    writeln!(out, "</svg>")
}

fn short(text: &str) -> String {
    match text.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// How ratios map to places: twice as much is as far from 1 as half as much.
struct Scale {
    /// The logarithm at both ends.
    reach: f64,
}

impl Scale {
    /// So that all intervals fit; what reaches further than a factor of eight is cut.
    fn around(bars: &[Bar<'_>]) -> Self {
        let ratios = bars.iter().filter_map(|bar| bar.judgement.ratio);
        let reach = ratios.flat_map(|ratio| [ratio.low, ratio.high]).map(|end| end.ln().abs());
        Self {
            reach: reach.filter(|reach| reach.is_finite()).fold(0.05, f64::max).min(8_f64.ln())
                * 1.05,
        }
    }

    fn place(&self, ratio: f64) -> f64 {
        let part = (ratio.ln() / self.reach).clamp(-1.0, 1.0);
        f64::midpoint(LEFT, RIGHT) + part * (RIGHT - LEFT) / 2.0
    }

    /// Round ratios and their inverses, with 1 between them.
    fn ticks(&self) -> Vec<f64> {
        let steps: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0];
        let step = steps.into_iter().rev().find(|step| step.ln_1p() * 1.5 <= self.reach);
        let step = step.unwrap_or(steps[0]);
        let above =
            (1..).map(|count| (1.0 + step).powi(count)).take_while(|tick| tick.ln() <= self.reach);
        let above: Vec<f64> = above.take(4).collect();
        let below = above.iter().rev().map(|tick| 1.0 / tick);
        below.chain([1.0]).chain(above.iter().copied()).collect()
    }
}

fn tick_text(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text that XML takes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// `3 Feb 2027 14:05 UTC` of seconds since 1970.
pub(super) fn date(unix: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, minutes) = (unix / 86_400, unix % 86_400 / 60);
    // Years that begin in March, in eras of 400.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let name = MONTHS[((month + 2) % 12) as usize];
    let year = era * 400 + year + u64::from(month >= 10);
    format!("{of_month} {name} {year} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample::Estimate;

    fn judgement(low: f64, high: f64) -> Judgement {
        let ratio = Estimate { median: (low * high).sqrt(), low, high, coverage: 0.999 };
        Judgement { ratio: Some(ratio), ..Judgement::default() }
    }

    fn bar(judgement: &Judgement) -> Bar<'_> {
        Bar { name: "a <b>".into(), is_group: false, judgement, words: "same; more".into() }
    }

    #[test]
    fn half_and_twice_are_as_far_from_one() {
        let all = [judgement(0.5, 1.1)];
        let scale = Scale::around(&all.each_ref().map(bar));
        let middle = f64::midpoint(LEFT, RIGHT);
        assert!((scale.place(1.0) - middle).abs() < 1e-9);
        assert!((scale.place(0.5) + scale.place(2.0) - 2.0 * middle).abs() < 1e-9);
        assert!(scale.place(0.001) >= LEFT && scale.place(1e9) <= RIGHT);
    }

    #[test]
    fn every_scale_has_round_ticks_and_the_one() {
        for reach in [0.01, 0.03, 0.2, 0.9, 5.0] {
            let all = [judgement(1.0 - reach / 2.0, 1.0 + reach)];
            let all = all
                .each_ref()
                .map(|found| Judgement { ratio: found.ratio.filter(|r| r.low > 0.0), ..*found });
            let ticks = Scale::around(&all.each_ref().map(bar)).ticks();
            assert!(ticks.contains(&1.0) && (3..=9).contains(&ticks.len()), "{reach}: {ticks:?}");
        }
    }

    #[test]
    fn text_is_escaped_and_long_titles_are_cut() {
        let found = judgement(0.9, 1.1);
        let picture = draw(&["x".repeat(300)], &[bar(&found)]);
        assert!(picture.contains("a &lt;b&gt;") && !picture.contains(&"x".repeat(LETTERS + 1)));
        assert!(picture.contains(">same<") && !picture.contains("NaN"), "{picture}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "1 Jan 1970 00:00 UTC"),
            (951_782_400, "29 Feb 2000 00:00 UTC"),
            (1_735_689_599, "31 Dec 2024 23:59 UTC"),
            (1_772_323_200, "1 Mar 2026 00:00 UTC"),
        ] {
            assert_eq!(date(unix), text);
        }
    }
}
