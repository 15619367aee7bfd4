//! The terminal: a full screen that is drawn anew, and keys.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, queue, style, terminal};

use lab::error::{Error, Result};

/// The terminal while it shows a full screen. It is as before once this is dropped.
#[derive(Debug)]
pub(crate) struct Screen(());

/// What a user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// To end.
    Quit,
    /// Another order.
    Sort,
    /// To stop drawing, or to go on.
    Pause,
    /// The screen has another size, or is to be drawn anew.
    Redraw,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It is none, or does not answer.
    pub(crate) fn new() -> Result<Self> {
        terminal::enable_raw_mode().map_err(failed)?;
        let screen = Self(());
        execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide).map_err(failed)?;
        Ok(screen)
    }

    /// Its lines.
    pub(crate) fn lines(&self) -> usize {
        terminal::size().map_or(24, |(_, lines)| usize::from(lines))
    }

    /// Its columns.
    pub(crate) fn columns(&self) -> usize {
        terminal::size().map_or(80, |(columns, _)| usize::from(columns))
    }

    /// Shows `text`, cut to the size of the screen.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(crate) fn show(&self, text: &str) -> Result<()> {
        let (columns, lines) = terminal::size().unwrap_or((80, 24));
        let mut out = stdout().lock();
        let mut draw = || -> std::io::Result<()> {
            queue!(out, terminal::Clear(terminal::ClearType::All))?;
            for (at, line) in text.lines().take(lines.into()).enumerate() {
                let cut: String = line.chars().take(columns.into()).collect();
                queue!(out, cursor::MoveTo(0, at as u16), style::Print(cut))?;
            }
            out.flush()
        };
        draw().map_err(failed)
    }

    /// The next key within `limit`.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(crate) fn key(&self, limit: Duration) -> Result<Option<Key>> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(failed)? {
                return Ok(None);
            }
            if let Some(key) = meaning(&event::read().map_err(failed)?) {
                return Ok(Some(key));
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(KeyEvent { kind: KeyEventKind::Release, .. }) => None,
        Event::Key(KeyEvent { code: KeyCode::Char('c'), modifiers, .. })
            if modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Some(Key::Quit)
        }
        Event::Key(KeyEvent { code, .. }) => match code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
            KeyCode::Char('s') => Some(Key::Sort),
            KeyCode::Char(' ') => Some(Key::Pause),
            _ => None,
        },
        _ => None,
    }
}

fn failed(problem: std::io::Error) -> Error {
    Error::io("the terminal", problem)
}
