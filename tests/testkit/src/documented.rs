//! The commands that the pages of this repository show, for tests of the programs that have to
//! understand them.

use std::fs;
use std::path::Path;

/// A command as a page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documented {
    /// The page, from the root of the repository, and the line.
    pub place: String,
    /// What follows the program's name.
    pub arguments: Vec<String>,
    /// In a block of code, which is there to be typed as it is. Else it is named within a sentence,
    /// perhaps in part.
    pub whole: bool,
}

/// Every command of `program` with at least one argument, on every page but those of results and
/// the changelog, which describes past versions. The program may stand behind a launcher,
/// behind another program's `--`, or in quotes.
pub fn commands(program: &str) -> Vec<Documented> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the root of the repository");
    let mut found = Vec::new();
    below(&root, &mut |page| {
        // What is gone meanwhile, or no text, is no page of the repository.
        let Ok(text) = fs::read_to_string(page) else { return };
        let name = page.strip_prefix(&root).expect("below it").display().to_string();
        for (number, command, whole) in shown(&text) {
            let place = format!("{name}:{number}");
            let new = arguments(&command, program).into_iter();
            found.extend(new.map(|arguments| Documented {
                place: place.clone(),
                arguments,
                whole,
            }));
        }
    });
    found
}

fn below(folder: &Path, page: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let other = ["target", "results", "packages", "dist", "node_modules"].contains(&&*name)
            || name.starts_with('.');
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !other {
            below(&path, page);
        } else if name.ends_with(".md") && !["CHANGELOG.md", "report.md"].contains(&&*name) {
            page(&path);
        }
    }
}

/// What a page shows as code: the line, the text, and whether it is a block.
fn shown(text: &str) -> Vec<(usize, String, bool)> {
    let (mut found, mut fenced, mut session, mut continued) =
        (Vec::new(), false, false, None::<(usize, String)>);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            session = fenced && language == "console";
        } else if session && !line.starts_with("$ ") {
            // What a command has printed.
        } else if fenced || line.starts_with("    ") {
            let line = line.trim();
            let (first, mut command) = continued.take().unwrap_or_else(|| (number, String::new()));
            command += line.strip_prefix("$ ").unwrap_or(line);
            match command.strip_suffix('\\') {
                Some(more) => continued = Some((first, more.to_owned())),
                None => found.push((first, command, true)),
            }
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| (number, span.to_owned(), false)));
        }
    }
    found
}

/// The arguments of each call of `program` in a line of a shell.
fn arguments(line: &str, program: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for command in
        words(line).split(|word| ["|", "||", "&&", ";", "&", ">"].contains(&word.as_str()))
    {
        for (at, word) in command.iter().enumerate() {
            if word.contains(' ') {
                found.extend(arguments(word, program));
            } else if (word == program || word.ends_with(&format!("bin/{program}")))
                && at + 1 < command.len()
                // A crate, for cargo.
                && command[at.saturating_sub(1)] != "-p"
            {
                found.push(command[at + 1..].to_vec());
            }
        }
    }
    found
}

/// The words of a line of a shell, without a comment: quotes are taken off, parentheses of `$(` and
/// `<(` end words.
fn words(line: &str) -> Vec<String> {
    let (mut found, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '(' | ')') => {
                found.extend(word.take());
                found.push(";".into());
            }
            (None, _) if c.is_whitespace() => found.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        arguments(line, "ferrite").iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn a_program_is_found_behind_others() {
        assert_eq!(found("dist/bin/ferrite check --only 1,2   # two"), ["check --only 1,2"]);
        assert_eq!(found("srun --ntasks-per-node=1 ferrite doctor --job"), ["doctor --job"]);
        assert_eq!(
            found("run.sh 'dist/bin/ferrite verify --verbs system'"),
            ["verify --verbs system"]
        );
        assert_eq!(found("source <(ferrite completions bash)"), ["completions bash"]);
        assert_eq!(found("ferrite completions fish | source"), ["completions fish"]);
        assert_eq!(found("cargo test -p ferrite --lib"), [""; 0]);
        assert_eq!(found("eval \"$(nccl-net-ferrite)\" && ls ferrite"), [""; 0]);
    }

    #[test]
    fn blocks_and_words_of_sentences() {
        let text = "See `ferrite top`.\n\n    ferrite trace \\\n        --seconds 1\n\n```\n$ ferrite hang all\n```\n```console\nferrite 1\n```\n";
        let all: Vec<_> = shown(text).into_iter().filter(|(_, line, _)| !line.is_empty()).collect();
        let wanted = [
            (1, "ferrite top", false),
            (3, "ferrite trace --seconds 1", true),
            (7, "ferrite hang all", true),
        ];
        assert_eq!(all, wanted.map(|(number, line, whole)| (number, line.to_owned(), whole)));
    }
}
