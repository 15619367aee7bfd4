//! Outcomes as JUnit XML: a suite with a case per point.

use crate::check::outcome::{Outcome, Verdict};
use crate::check::report::counts;

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
        text += &format!("  <testcase classname=\"{number:02}\" name=\"{name}\" time=\"{seconds:.3}\">\n");
        match verdict {
            Verdict::Passed => text += &format!("    <system-out>{}</system-out>\n", escaped(detail)),
            Verdict::Skipped => text += &format!("    <skipped message=\"{}\"/>\n", escaped(detail)),
            Verdict::Failed => {
                let log = format!("{claim}\n{}", log.join("\n"));
                text += &format!("    <failure message=\"{}\">{}</failure>\n", escaped(detail), escaped(&log));
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

    #[test]
    fn xml_is_escaped_and_counted() {
        let outcome = |verdict, detail: &str| {
            let (name, claim) = ("a-name".into(), "a claim".into());
            Outcome { number: 7, name, claim, verdict, detail: detail.into(), seconds: 0.25, log: vec!["last".into()] }
        };
        let all = [outcome(Verdict::Failed, "1 < 2 & \"so\u{1b}\""), outcome(Verdict::Skipped, "why")];
        let text = xml("t", &all);
        assert!(text.contains("tests=\"2\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("message=\"1 &lt; 2 &amp; &quot;so?&quot;\""), "{text}");
    }
}
