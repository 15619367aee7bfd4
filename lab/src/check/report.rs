//! Outcomes for people, and for programs.

use nccl_net::inspect::version;
use serde::Serialize;

use crate::check::runner::{Outcome, Verdict};
use crate::error::{Error, Result};

/// One line, and the last words of the processes after a failure.
pub(crate) fn line(outcome: &Outcome) -> String {
    let Outcome { number, name, verdict, detail, seconds, log, .. } = outcome;
    let mut text = match verdict {
        Verdict::Skipped => format!("{number:>2}  {name:<26}  skipped: {detail}\n"),
        _ => format!("{number:>2}  {name:<26}  {verdict:<4}  {detail} [{seconds:.1} s]\n"),
    };
    for line in log.iter().rev().take(8).rev() {
        text += &format!("        | {line}\n");
    }
    text
}

/// Everything in one line.
pub(crate) fn summary(title: &str, outcomes: &[Outcome]) -> String {
    let [passed, failed, skipped] = counts(outcomes);
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    format!(
        "{title}: {} checks, {passed} passed, {failed} failed, {skipped} skipped, {seconds:.0} s\n",
        outcomes.len()
    )
}

/// Passed, failed, skipped.
pub(crate) fn counts(outcomes: &[Outcome]) -> [usize; 3] {
    [Verdict::Passed, Verdict::Failed, Verdict::Skipped]
        .map(|verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count())
}

#[derive(Serialize)]
struct Json<'a> {
    tool: &'static str,
    title: &'a str,
    passed: usize,
    failed: usize,
    skipped: usize,
    checks: &'a [Outcome],
}

/// As JSON: `tool`, which is the version of this program with the commit, `title`, the counts, and
/// `checks` with number, name, claim, verdict, detail, seconds and log of each.
///
/// # Errors
/// [`Error::Unreadable`] if it cannot be written down.
pub(crate) fn json(title: &str, outcomes: &[Outcome]) -> Result<String> {
    let [passed, failed, skipped] = counts(outcomes);
    let json = Json { tool: version::text(), title, passed, failed, skipped, checks: outcomes };
    serde_json::to_string_pretty(&json)
        .map_err(|problem| Error::Unreadable(format!("no JSON: {problem}")))
}

/// The whole file.
pub(crate) fn xml(title: &str, outcomes: &[Outcome]) -> String {
    let [_, failed, skipped] = counts(outcomes);
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" \
         skipped=\"{skipped}\" time=\"{seconds:.3}\">\n",
        escaped(title),
        outcomes.len()
    );
    for Outcome { number, name, claim, verdict, detail, seconds, log } in outcomes {
        text += &format!(
            "  <testcase classname=\"{number:02}\" name=\"{name}\" time=\"{seconds:.3}\">\n"
        );
        match verdict {
            Verdict::Passed => {
                text += &format!("    <system-out>{}</system-out>\n", escaped(detail))
            }
            Verdict::Skipped => {
                text += &format!("    <skipped message=\"{}\"/>\n", escaped(detail))
            }
            Verdict::Failed => {
                let log = format!("{claim}\n{}", log.join("\n"));
                text += &format!(
                    "    <failure message=\"{}\">{}</failure>\n",
                    escaped(detail),
                    escaped(&log)
                );
            }
        }
        text += "  </testcase>\n";
    }
    text + "</testsuite>\n"
}

fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        match character {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' | '\t' => safe.push(character),
            other if other.is_control() => safe.push('?'),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, detail: &str) -> Outcome {
        let (name, claim) = ("a-name".into(), "a claim".into());
        Outcome {
            number: 7,
            name,
            claim,
            verdict,
            detail: detail.into(),
            seconds: 0.25,
            log: vec!["last".into()],
        }
    }

    #[test]
    fn lines_say_number_name_and_verdict() {
        assert!(
            line(&outcome(Verdict::Failed, "no"))
                .starts_with(" 7  a-name                      FAIL  no [0.2 s]\n")
        );
        assert!(line(&outcome(Verdict::Skipped, "needs a GPU")).contains("skipped: needs a GPU"));
        let all = [
            outcome(Verdict::Passed, ""),
            outcome(Verdict::Failed, ""),
            outcome(Verdict::Failed, ""),
        ];
        assert_eq!(summary("x", &all), "x: 3 checks, 1 passed, 2 failed, 0 skipped, 1 s\n");
    }

    #[test]
    fn json_has_counts_and_verdicts() {
        let all = [outcome(Verdict::Failed, "no"), outcome(Verdict::Skipped, "why")];
        let json: serde_json::Value =
            serde_json::from_str(&json("t", &all).expect("JSON")).expect("JSON");
        assert_eq!(json["tool"], version::text());
        assert_eq!(
            (json["failed"].as_u64(), json["checks"][1]["verdict"].as_str()),
            (Some(1), Some("skipped"))
        );
    }

    #[test]
    fn xml_is_escaped_and_counted() {
        let outcome = |verdict, detail: &str| {
            let (name, claim) = ("a-name".into(), "a claim".into());
            Outcome {
                number: 7,
                name,
                claim,
                verdict,
                detail: detail.into(),
                seconds: 0.25,
                log: vec!["last".into()],
            }
        };
        let all =
            [outcome(Verdict::Failed, "1 < 2 & \"so\u{1b}\""), outcome(Verdict::Skipped, "why")];
        let text = xml("t", &all);
        assert!(text.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("message=\"1 &lt; 2 &amp; &quot;so?&quot;\""), "{text}");
    }
}
