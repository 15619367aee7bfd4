//! A page in parts, as Markdown and as HTML: one file that needs no network.

use crate::report::chart::escape;
use crate::report::table::Table;

/// A part of a page. Words between backticks are code, those between pairs of stars are strong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// 1: the page's title.
    Heading(usize, String),
    Text(String),
    Items(Vec<String>),
    Table(Table),
    /// As it is, in letters of one width.
    Plain(String),
    /// An SVG picture, and what it shows.
    Picture(String, String),
}

/// The page in Markdown. Its picture is a file beside it.
pub(super) fn markdown(parts: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Heading(level, text) => format!("{} {text}\n", "#".repeat(*level)),
        Part::Text(text) => format!("{text}\n"),
        Part::Items(items) => items.iter().map(|item| format!("- {item}\n")).collect(),
        Part::Table(table) => table.markdown(),
        Part::Plain(text) => format!("```\n{}\n```\n", text.trim_end()),
        Part::Picture(_, shows) => format!("![{shows}](report.svg)\n"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// What may be wider than the screen is moved by itself, and the page is not.
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:72em;margin:2em auto;\
    padding:0 1em;color:#222;overflow-wrap:anywhere}.wide{overflow-x:auto}\
    table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 8px;text-align:right;\
    white-space:nowrap}:is(td,th):is(:first-child,:last-child){text-align:left}\
    pre,code{background:#f4f4f4}pre{display:inline-block;min-width:100%}\
    svg{width:100%;min-width:46em;max-width:920px;height:auto}";

/// The page in HTML, with its picture in it.
pub(super) fn html(title: &str, parts: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Heading(level, text) => format!("<h{level}>{}</h{level}>", inline(text)),
        Part::Text(text) => format!("<p>{}</p>", inline(text)),
        Part::Items(items) => {
            let items: String =
                items.iter().map(|item| format!("<li>{}</li>\n", inline(item))).collect();
            format!("<ul>\n{items}</ul>")
        }
        Part::Table(table) => of_table(table),
        Part::Plain(text) => wide(&format!("<pre>{}</pre>", escape(text.trim_end()))),
        Part::Picture(svg, _) => wide(svg.trim_end()),
    };
    let body: String = parts.iter().map(|one| part(one) + "\n").collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

fn of_table(table: &Table) -> String {
    let row = |cells: &[String], tag: &str| -> String {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    let head = row(&table.columns, "th");
    let table_of = format!("<table>\n{head}{rows}</table>");
    format!("<h3>{}</h3>\n{}", escape(&table.title), wide(&table_of))
}

fn wide(html: &str) -> String {
    format!("<div class=\"wide\">{html}</div>")
}

/// Code and strong words of a line.
fn inline(text: &str) -> String {
    tagged(&tagged(&escape(text), "`", "code"), "**", "strong")
}

fn tagged(text: &str, mark: &str, tag: &str) -> String {
    let parts: Vec<&str> = text.split(mark).collect();
    let count = parts.len();
    let part = |(index, part): (usize, &&str)| match index {
        0 => (*part).to_owned(),
        // A mark without its end is text.
        index if index % 2 == 1 && index + 1 == count => format!("{mark}{part}"),
        index if index % 2 == 1 => format!("<{tag}>{part}"),
        _ => format!("</{tag}>{part}"),
    };
    parts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table {
            title: "T < U".into(),
            columns: row(["size", "0->1"]),
            rows: vec![row(["8", "1.5"])],
        };
        vec![
            Part::Heading(1, "A & B".into()),
            Part::Text("**B is better** by `x < y`, 1 ` left".into()),
            Part::Items(vec!["one".into(), "two".into()]),
            Part::Table(table),
            Part::Plain("a  <b>\n".into()),
            Part::Picture("<svg></svg>\n".into(), "ratios".into()),
        ]
    }

    #[test]
    fn the_same_parts_make_both_pages() {
        assert_eq!(
            markdown(&parts()),
            "# A & B\n\n**B is better** by `x < y`, 1 ` left\n\n- one\n- two\n\n### T < U\n\n\
             | size | 0->1 |\n|---:|---:|\n| 8 | 1.5 |\n\n```\na  <b>\n```\n\n![ratios](report.svg)\n"
        );
        let page = html("A & B", &parts());
        for words in [
            "<title>A &amp; B</title>",
            "<p><strong>B is better</strong> by <code>x &lt; y</code>, 1 ` left</p>",
            "<li>two</li>",
            "<tr><th>size</th><th>0-&gt;1</th></tr>",
            "<pre>a  &lt;b&gt;</pre></div>\n<div class=\"wide\"><svg></svg></div>",
        ] {
            assert!(page.contains(words), "{words:?} is missing: {page}");
        }
    }

    /// As a browser reads it: each element that is opened is closed, and nothing is fetched.
    #[test]
    fn the_page_is_well_formed_and_needs_no_network() {
        let page = html("t", &parts());
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
            let name = tag.split(' ').next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
                None if name.starts_with('!') || name == "meta" || tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        for word in ["src=", "href=", "url(", "@import", "<script"] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
