//! Times of collectives in whole jobs of NCCL, measured by another program: judged like the rows
//! of `ferrite compare`, drawn and reported.
//!
//! `nccl-net-ferrite ab` writes them. A run is a communicator, or a job of fresh processes. Runs
//! come in blocks of four: A B B A, or B A A B. Each two neighbours of a block give one ratio of B
//! to A, which is what a set is in [`crate::results::judgement`]. Both of a block count as
//! independent: their correlation was between -0.5 and 0.3, with a mean of -0.1, in four runs of
//! `ab` on two GPUs.

use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::measure::metric::{Better, size_text};
use crate::measure::sample;
use crate::report::chart::{self, Bar};
use crate::report::page::Part;
use crate::report::table::{self, Column, Named, Table, number, percent};
use crate::report::verdict::{Conclusion, Judged};
use crate::report::write_files;
use crate::results::judgement::{self, Judgement, NOTHING};

/// The name and version of the form.
const SCHEMA: &str = "ferrite-times/1";
/// Runs of a block.
const BLOCK: usize = 4;
/// If all is alike, the chance that any difference is reported, half of it for rows and half for
/// groups. There are few runs, and more take hours: it is larger than that of `ferrite compare`.
const CHANCE: f64 = 0.05;
/// A smaller loss is reported, but is no failure: two runs of one library differ by as much.
const FAIL: f64 = 0.03;
/// Times that a call may take, in microseconds, and bytes on a link for each byte of it: ratios of
/// others are no numbers.
const US: RangeInclusive<f64> = 1e-6..=1e15;
const BUS: RangeInclusive<f64> = 0.0..=1e6;

/// What was measured; with it, once it is judged, what follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// [`SCHEMA`].
    schema: String,
    /// What is compared, as the head of the report.
    title: String,
    /// What A is, and B.
    a: String,
    b: String,
    /// The side of each run, such as `ABBABAAB`.
    order: String,
    /// What a run is, in words.
    #[serde(default = "a_job")]
    run: String,
    /// How often the times have been judged with this time, to end as soon as they suffice; 0 if
    /// their number was chosen before.
    #[serde(default)]
    looks: u32,
    /// What is to be read before the results, such as that the run was interrupted.
    notes: Vec<String>,
    /// Lines at the end of the report: the command, versions, variables.
    facts: Vec<String>,
    /// Whatever else the program that measured wants to keep.
    about: Value,
    /// One per collective and size.
    rows: Vec<Row>,
    /// Rows that are judged together: of each collective, and all.
    #[serde(default, skip_deserializing)]
    groups: Vec<Group>,
}

/// Rows that are judged together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Group {
    name: String,
    #[serde(flatten)]
    judgement: Judgement,
}

impl AsRef<Judgement> for Group {
    fn as_ref(&self) -> &Judgement {
        &self.judgement
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    collective: String,
    /// That was asked for, and that it really has.
    size: u64,
    bytes: u64,
    /// Bytes on a link for each byte of it, as nccl-tests counts them.
    bus: f64,
    /// Of each run of a side, in their order.
    a_us: Vec<f64>,
    b_us: Vec<f64>,
    #[serde(default, skip_deserializing)]
    judgement: Judgement,
}

fn a_job() -> String {
    "a job of fresh processes".into()
}

impl Row {
    fn name(&self) -> String {
        format!("{} {}", self.collective, size_text(self.size))
    }

    /// GB/s on a link, of a call that takes so long.
    fn bandwidth(&self, us: f64) -> f64 {
        self.bytes as f64 * self.bus / us / 1e3
    }
}

fn median(values: &[f64]) -> f64 {
    sample::median(&mut values.to_vec()).unwrap_or(f64::NAN)
}

impl Times {
    /// Reads such a file; what an earlier judgement found is left out.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] if it is none, with what is wrong.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|e| Error::io(format!("cannot read {}", file.display()), e))?;
        let refused = |why: String| Error::Refused(format!("{}: {why}", file.display()));
        let form: Value = serde_json::from_str(&text)
            .map_err(|e| refused(format!("no raw.json of `ab`: {e}")))?;
        if form.get("schema").and_then(Value::as_str) != Some(SCHEMA) {
            let schema = form.get("schema").map_or_else(|| "unknown".into(), Value::to_string);
            return Err(refused(format!(
                "no raw.json of `ab`: its form is {schema}, and {SCHEMA:?} is understood"
            )));
        }
        let times: Self = serde_json::from_value(form)
            .map_err(|e| refused(format!("no raw.json of `ab`: {e}")))?;
        times.check().map_err(refused)?;
        Ok(times)
    }

    fn check(&self) -> Result<(), String> {
        let is_block = |block: &[u8]| block == b"ABBA" || block == b"BAAB";
        if self.order.is_empty() || !self.order.as_bytes().chunks(BLOCK).all(is_block) {
            return Err(format!(
                "the order of runs {:?} is not made of blocks ABBA and BAAB",
                self.order
            ));
        }
        if self.rows.is_empty() {
            return Err("there are no rows".into());
        }
        let runs = self.order.len() / 2;
        for row in &self.rows {
            if row.a_us.len() != runs || row.b_us.len() != runs {
                return Err(format!("{}: each side has to have {runs} times", row.name()));
            }
            if let Some(time) = row.a_us.iter().chain(&row.b_us).find(|time| !US.contains(time)) {
                return Err(format!(
                    "{}: a time of {time} us; {:e} to {:e} are possible",
                    row.name(),
                    US.start(),
                    US.end()
                ));
            }
            if !BUS.contains(&row.bus) {
                return Err(format!(
                    "{}: bus is {}; {} to {} are possible",
                    row.name(),
                    row.bus,
                    BUS.start(),
                    BUS.end()
                ));
            }
        }
        Ok(())
    }

    /// Judges it: `find` is the difference that must not be missed, as a fraction.
    pub(crate) fn judged(mut self, find: f64) -> JudgedTimes {
        // Look number n takes one part in n (n + 1): all looks together take no more than CHANCE.
        let looks = f64::from(self.looks);
        let part = if self.looks == 0 { 1.0 } else { 1.0 / (looks * (looks + 1.0)) };
        let judge = |rows: &[&Row], family| {
            let family = f64::from(u32::try_from(family).unwrap_or(u32::MAX).max(1));
            let chance = CHANCE / 2.0 / family * part;
            judgement::judge(Better::Lower, &self.logs(rows), chance, find)
        };
        let of_rows: Vec<Judgement> =
            self.rows.iter().map(|row| judge(&[row], self.rows.len())).collect();
        let mut groups: Vec<(String, Vec<&Row>)> =
            self.collectives().into_iter().map(|(name, rows)| (name.to_owned(), rows)).collect();
        if groups.len() > 1 {
            groups.push(("all".into(), self.rows.iter().collect()));
        }
        let family = groups.len();
        let group =
            |(name, rows): (String, Vec<&Row>)| Group { judgement: judge(&rows, family), name };
        let groups = groups.into_iter().map(group).collect();
        self.rows.iter_mut().zip(of_rows).for_each(|(row, judgement)| row.judgement = judgement);
        self.groups = groups;
        JudgedTimes { times: self }
    }

    /// The rows of each collective, in the order in which they were measured.
    fn collectives(&self) -> Vec<(&str, Vec<&Row>)> {
        let mut all: Vec<(&str, Vec<&Row>)> = Vec::new();
        for row in &self.rows {
            match all.iter_mut().find(|(name, _)| *name == row.collective) {
                Some((_, rows)) => rows.push(row),
                None => all.push((&row.collective, vec![row])),
            }
        }
        all
    }

    /// The logarithm of B over A of each two neighbours, of these rows together: means.
    fn logs(&self, rows: &[&Row]) -> Vec<f64> {
        let log = |run: usize| {
            let sum: f64 = rows.iter().map(|row| (row.b_us[run] / row.a_us[run]).ln()).sum();
            sum / rows.len() as f64
        };
        (0..self.order.len() / 2).map(log).collect()
    }
}

/// What the runs show.
#[derive(Debug)]
pub(crate) struct JudgedTimes {
    times: Times,
}

impl JudgedTimes {
    fn all(&self) -> Judged<'_> {
        let named = |name: String, judgement| Named::new((name, Better::Lower), judgement);
        let (rows, groups) = (&self.times.rows, &self.times.groups);
        Judged {
            fail: FAIL,
            groups: groups.iter().map(|one| named(one.name.clone(), &one.judgement)).collect(),
            rows: rows.iter().map(|one| named(one.name(), &one.judgement)).collect(),
        }
    }

    pub(crate) fn conclusion(&self) -> Conclusion {
        self.all().conclusion()
    }

    /// The verdict, the statement of each group, then what is to be read with it.
    pub(crate) fn summary(&self) -> String {
        let all = self.all();
        let groups =
            all.groups.iter().map(|group| format!("  {:<17}{}", group.name, group.words()));
        let lines = std::iter::once(format!("{}: {}", self.times.title, all.line()));
        let notes = self.times.notes.iter().cloned();
        lines.chain(groups).chain(notes).collect::<Vec<_>>().join("\n")
    }

    /// Writes the report and raw.json.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let page = self.page();
        write_files(folder, &self.times, (&self.times.title, &page, self.picture()))
    }

    fn page(&self) -> Vec<Part> {
        let times = &self.times;
        let mut parts = vec![
            Part::Heading(1, times.title.clone()),
            Part::Text(format!("**{}.**", self.all().line())),
        ];
        parts.extend(times.notes.iter().map(|note| Part::Text(format!("**{note}.**"))));
        let sides = [("A", &times.a), ("B", &times.b)];
        parts.push(Part::Items(
            sides.iter().map(|(label, side)| format!("**{label}** = {side}")).collect(),
        ));
        parts.push(Part::Picture(self.picture(), "Ratios of B to A with their intervals".into()));
        let groups = table::groups(&times.groups, |group| (group.name.clone(), Better::Lower));
        parts.extend(groups.into_iter().chain([self.table()]).map(Part::Table));
        parts.push(Part::Heading(2, "How to read it".into()));
        parts.push(Part::Text(format!(
            "Each value is the median over {} runs, half of them of A and half of B, each {}, in the order `{}`. GB/s is bus bandwidth. B/A is the \
             Hodges-Lehmann estimate over the ratios of neighbours, one of each side, and [..] the interval of Wilcoxon's signed ranks. B \
             is faster or slower where the interval lies beyond {} on one side of 1; the same within X where it reaches no further than \
             X; else it is undecided. If A and B do not differ, the chance of any reported difference is {:.0} %. A loss of less than \
             {} is reported, but is no failure.",
            times.order.len(),
            times.run,
            times.order,
            percent(NOTHING),
            CHANCE * 100.0,
            percent(FAIL)
        )));
        parts.push(Part::Heading(2, "What ran".into()));
        parts.push(Part::Items(times.facts.clone()));
        parts
    }

    fn picture(&self) -> String {
        let times = &self.times;
        let head = [
            times.title.clone(),
            self.all().line(),
            format!("A = {}", times.a),
            format!("B = {}", times.b),
        ];
        let bar = |name: String, is_group, judgement| Bar {
            words: Named::new((String::new(), Better::Lower), judgement).words(),
            name,
            is_group,
            judgement,
        };
        let groups = times.groups.iter().map(|one| bar(one.name.clone(), true, &one.judgement));
        let rows = times.rows.iter().map(|one| bar(one.name(), false, &one.judgement));
        chart::draw(&head, &groups.chain(rows).collect::<Vec<_>>())
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            Column::new("collective", |row: &Row| row.collective.clone()),
            Column::new("size", |row: &Row| size_text(row.size)),
            Column::new("A us", |row: &Row| number(median(&row.a_us))),
            Column::new("B us", |row: &Row| number(median(&row.b_us))),
            Column::new("A GB/s", |row: &Row| number(row.bandwidth(median(&row.a_us)))),
            Column::new("B GB/s", |row: &Row| number(row.bandwidth(median(&row.b_us)))),
        ];
        columns.extend(table::judged(|row: &Row| (row.name(), Better::Lower, &row.judgement)));
        Table::new(
            "Collectives: time of a call, and bus bandwidth",
            columns,
            self.times.rows.iter(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::judgement::Finding;

    /// As recorded on a machine that is quiet to a per cent or two, with B's times so many times as
    /// long.
    fn recorded(slower: f64, blocks: usize) -> Value {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/times.json");
        let mut times: Value =
            serde_json::from_str(&std::fs::read_to_string(file).expect("a file")).expect("JSON");
        let order: String =
            times["order"].as_str().expect("text").chars().take(BLOCK * blocks).collect();
        times["order"] = order.into();
        for row in times["rows"].as_array_mut().expect("rows") {
            for (side, factor) in [("a_us", 1.0), ("b_us", slower)] {
                let all = row[side].as_array().expect("times").iter().take(2 * blocks);
                row[side] = all.map(|time| time.as_f64().expect("a time") * factor).collect();
            }
        }
        times
    }

    fn read(times: &Value) -> Result<Times> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), times.to_string()).expect("written");
        Times::read(file.path())
    }

    fn judged(slower: f64, blocks: usize) -> JudgedTimes {
        read(&recorded(slower, blocks)).expect("times").judged(0.1)
    }

    #[test]
    fn recorded_times_are_told_apart_where_they_differ() {
        for (slower, blocks, expected, words) in [
            (1.0, 7, Conclusion::Good, "B is as good as A: the same within "),
            (0.8, 7, Conclusion::Good, "B is BETTER than A in 3 of 3 groups, worse nowhere"),
            (1.2, 7, Conclusion::Worse, "B is WORSE than A: all_reduce, send_recv, all"),
            (2.0, 2, Conclusion::Undecided, "UNDECIDED in 3 of 3 groups; worse nowhere"),
        ] {
            let judged = judged(slower, blocks);
            assert_eq!(judged.conclusion(), expected, "{slower} {blocks}: {}", judged.summary());
            assert!(judged.summary().contains(words), "{}", judged.summary());
            let names: Vec<&str> =
                judged.times.groups.iter().map(|group| group.name.as_str()).collect();
            assert_eq!(names, ["all_reduce", "send_recv", "all"]);
        }
    }

    #[test]
    fn a_small_loss_is_told_and_is_no_failure() {
        let mut times = recorded(1.0, 7);
        for row in times["rows"].as_array_mut().expect("rows") {
            let exact = |factor: f64| (0..14).map(|_| 100.0 * factor).collect::<Value>();
            (row["a_us"], row["b_us"]) = (exact(1.0), exact(1.02));
        }
        let judged = read(&times).expect("times").judged(0.1);
        assert!(
            judged.summary().contains("B is worse than A, nowhere by 3.0 % or more: all_reduce"),
            "{}",
            judged.summary()
        );
        assert_eq!(judged.conclusion(), Conclusion::Good);
    }

    #[test]
    fn neighbours_are_paired_and_a_row_has_its_bus_bandwidth() {
        let judged = judged(1.5, 7);
        let row = &judged.times.rows[0];
        assert_eq!(row.judgement.finding, Finding::Worse);
        let ratio = row.judgement.ratio.expect("enough runs").median;
        let logs = row.a_us.iter().zip(&row.b_us).map(|(a, b)| (b / a).ln()).collect::<Vec<_>>();
        let expected = sample::signed_ranks(&logs, 0.95).expect("pairs").median.exp();
        assert!((ratio - expected).abs() < 1e-9, "{ratio}");
        assert_eq!(Row { bytes: 4000, bus: 1.5, ..row.clone() }.bandwidth(2.0), 3.0);
    }

    /// Times of 10 rows in 28 runs. The machine gets slower by 1 % with each run. All rows of a run
    /// share its noise.
    fn drifting(random: &mut fastrand::Rng, slower: f64, noise: f64) -> JudgedTimes {
        let mut times = recorded(1.0, 7);
        let order = times["order"].as_str().expect("text").to_owned();
        let mut value = |width: f64| width * (random.f64() + random.f64() + random.f64() - 1.5);
        let shared: Vec<f64> =
            (0..order.len()).map(|run| 0.01 * run as f64 + value(noise)).collect();
        let mut rows = Vec::new();
        for index in 0..10_u32 {
            let mut row = times["rows"][0].clone();
            row["size"] = 8_u64.pow(index).into();
            for (side, factor) in [('A', 1.0), ('B', slower)] {
                let of_side = order.char_indices().filter(|(_, letter)| *letter == side);
                let us: Vec<f64> = of_side
                    .map(|(run, _)| 20.0 * (shared[run] + value(0.02)).exp() * factor)
                    .collect();
                row[format!("{}_us", side.to_ascii_lowercase())] = us.into();
            }
            rows.push(row);
        }
        times["rows"] = rows.into();
        read(&times).expect("times").judged(0.1)
    }

    /// Of fifty reports in which nothing differs, few may say that something does; one in 20 is
    /// what chance has.
    #[test]
    fn a_machine_that_drifts_is_no_difference_and_hides_none() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut claims = 0;
        for _ in 0..50 {
            let judged = drifting(&mut random, 1.0, 0.08);
            let found =
                |one: &Named<'_>| matches!(one.judgement.finding, Finding::Better | Finding::Worse);
            let all = judged.all();
            claims += usize::from(all.rows.iter().chain(&all.groups).any(found));
        }
        assert!(claims <= 5, "{claims} of 50");
        for _ in 0..10 {
            assert_eq!(drifting(&mut random, 1.25, 0.08).conclusion(), Conclusion::Worse);
            let alike = drifting(&mut random, 1.0, 0.01);
            assert_eq!(alike.conclusion(), Conclusion::Good, "{}", alike.summary());
        }
    }

    #[test]
    fn the_report_can_be_judged_again_and_is_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let texts = |judged: &JudgedTimes| {
            judged.write(folder.path()).expect("written");
            super::super::FILES
                .map(|name| std::fs::read_to_string(folder.path().join(name)).expect("a file"))
        };
        let first = texts(&judged(1.2, 7));
        let again =
            Times::read(&folder.path().join("raw.json")).expect("its own raw.json").judged(0.1);
        assert_eq!(texts(&again), first);
        let [_, picture, page, html] = first;
        assert_eq!(picture.matches("<circle").count(), 3 + judged(1.2, 7).times.rows.len());
        assert!(page.contains("| all_reduce | 8K |") && page.contains("\n- command: "), "{page}");
        assert!(
            html.contains(picture.trim_end()) && html.contains("<td>all_reduce</td><td>8K</td>"),
            "{html}"
        );
    }

    #[test]
    fn the_more_often_times_are_judged_the_wider_are_the_intervals() {
        let within = |looks: u32| {
            let mut times = recorded(1.0, 7);
            times["looks"] = looks.into();
            let judged = read(&times).expect("times").judged(0.1);
            judged.times.groups[0].judgement.within
        };
        let [never, once] = [within(0), within(1)].map(|within| within.expect("an interval"));
        assert!(never < once, "{never} {once}");
        assert_eq!(within(100), None, "too few for any claim");
    }

    #[test]
    fn the_report_says_what_a_run_is() {
        let mut times = recorded(1.0, 7);
        for words in ["each a job of fresh processes, in", "each a communicator, in"] {
            let folder = tempfile::tempdir().expect("a folder");
            read(&times).expect("times").judged(0.1).write(folder.path()).expect("a report");
            let page = std::fs::read_to_string(folder.path().join("report.md")).expect("a page");
            assert!(page.contains(words), "{page}");
            times["run"] = "a communicator".into();
        }
    }

    #[test]
    fn what_are_no_times_is_refused() {
        type Change = fn(&mut Value);
        let changes: [(Change, &str); 8] = [
            (
                |times| times["schema"] = "ferrite-run/2".into(),
                "its form is \"ferrite-run/2\", and \"ferrite-times/1\" is",
            ),
            (|times| times["order"] = "ABABAABB".into(), "not made of blocks ABBA and BAAB"),
            (|times| times["rows"] = Value::Array(Vec::new()), "there are no rows"),
            (
                |times| drop(times["rows"][0]["a_us"].as_array_mut().expect("times").pop()),
                "each side has to have 14 times",
            ),
            (|times| times["rows"][0]["a_us"][0] = 0.into(), "all_reduce 8K: a time of 0 us"),
            // Their quotient would be infinite, and no axis ends there.
            (|times| times["rows"][0]["b_us"][0] = 1e300_f64.into(), "all_reduce 8K: a time of 1"),
            (|times| times["rows"][0]["bus"] = (-1.0_f64).into(), "all_reduce 8K: bus is -1"),
            (
                |times| drop(times.as_object_mut().expect("an object").remove("facts")),
                "no raw.json of `ab`: missing field",
            ),
        ];
        for (change, words) in changes {
            let mut times = recorded(1.0, 7);
            change(&mut times);
            let said = read(&times).expect_err("refused").to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
