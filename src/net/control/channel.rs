//! One connection's share of a [`Line`].

use super::line::{End, Line, News, tell};
use super::link::Link;
use crate::error::{Error, Result};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::net::SocketAddr;
use std::sync::Arc;

/// The way to the peer of one connection. When it is dropped, the peer is told.
#[derive(Debug)]
pub struct Channel {
    line: Arc<Line>,
    token: Token,
    id: u64,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A frame.
    Frame(Frame),
    /// Nothing yet.
    Nothing,
    /// The line has ended; no more will come.
    End(End),
}

impl Channel {
    pub(in crate::net) fn new(line: Arc<Line>, token: Token, id: u64) -> Self {
        Self { line, token, id }
    }

    /// The line it is on.
    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// The listener's token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether nothing more is to be expected of the peer: the line has ended or it has said goodbye, and it has not
    /// committed before.
    pub(in crate::net) fn is_over(&self) -> bool {
        if self.line.is_inherited() {
            return false;
        }
        let wire = self.line.lock();
        let Some(route) = wire.routes.get(&self.id) else { return true };
        let has_ended = wire.end.is_some() || wire.open.get(&self.token) != Some(&self.id);
        has_ended && !route.inbox.iter().any(|frame| frame.kind == Kind::Commit)
    }

    /// Leaves without a word.
    pub(in crate::net) fn forsake(self) {
        if !self.line.is_inherited() {
            self.line.lock().close(self.token, self.id);
        }
    }

    /// The other end's address.
    pub fn peer(&self) -> SocketAddr {
        self.line.peer()
    }

    /// Whether the line is there.
    ///
    /// # Errors
    /// The attempt to connect failed with this errno; `Ok(false)` while it is under way.
    pub fn poll_connected(&self) -> std::result::Result<bool, i32> {
        self.line.poll_connected()
    }

    /// Puts a frame in line. After a refusal the peer expects no other.
    pub fn send(&self, kind: Kind, body: Vec<u8>) {
        if self.line.is_inherited() {
            return;
        }
        let mut wire = self.line.lock();
        if wire.end.is_some() {
            return;
        }
        if let Some(route) = wire.routes.get_mut(&self.id) {
            route.spoken = kind != Kind::Refuse;
        }
        wire.socket.send(&Frame { kind, token: self.token, body });
        wire.flush();
    }

    /// Hands over what is in line; whether all of it has gone.
    ///
    /// # Errors
    /// The line has ended.
    pub fn poll_sent(&self) -> Result<bool> {
        let broken = || Error::remote(format!("the connection to {} broke", self.peer()));
        if self.line.is_inherited() {
            return Err(broken());
        }
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let sent = wire.flush();
        if !sent {
            self.line.read_into(&mut wire, &mut news);
        }
        let has_ended = wire.end.is_some();
        drop(wire);
        tell(news);
        match has_ended && !sent {
            true => Err(broken()),
            false => Ok(sent),
        }
    }

    /// The next frame.
    pub fn poll_frame(&self) -> Heard {
        // A forked child must not wait for a lock that its parent held.
        if self.line.is_inherited() {
            return Heard::Nothing;
        }
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let mut next = wire.routes.get_mut(&self.id).and_then(|route| route.inbox.pop_front());
        if next.is_none() {
            self.line.read_into(&mut wire, &mut news);
            next = wire.routes.get_mut(&self.id).and_then(|route| route.inbox.pop_front());
        }
        let end = wire.end.clone();
        drop(wire);
        tell(news);
        match (next, end) {
            (Some(frame), _) => Heard::Frame(frame),
            (None, Some(end)) => Heard::End(end),
            (None, None) => Heard::Nothing,
        }
    }

    /// From now on `link` is told what comes. What it has to be told at once is returned.
    pub(in crate::net) fn attach(&self, link: &Arc<Link>) -> Vec<News> {
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let end = wire.end.clone();
        let Some(route) = wire.routes.get_mut(&self.id) else { return news };
        let first = route.inbox.pop_front();
        if first.is_none() && end.is_none() {
            route.link = Some(Arc::downgrade(link));
        }
        match (first, end) {
            (Some(frame), _) => {
                wire.close(self.token, self.id);
                news.push(News::Frame(Arc::clone(link), frame));
            }
            (None, Some(end)) => news.push(self.line.handle_late(&mut wire, link, end)),
            (None, None) => {}
        }
        news
    }

    /// Tells the peer, unless it was first, that this side ends, and why. Nothing more is heard after that.
    pub fn goodbye(&self, reason: &str) {
        if self.line.is_inherited() {
            return;
        }
        let mut wire = self.line.lock();
        let spoken = wire.routes.get(&self.id).is_some_and(|route| route.spoken);
        // Best effort: if the socket takes no more, its closing says the rest.
        if wire.close(self.token, self.id) && spoken {
            wire.socket.send(&Frame::text(Kind::Goodbye, self.token, reason));
            wire.flush();
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.goodbye("");
        if !self.line.is_inherited() {
            let route = self.line.lock().routes.remove(&self.id);
            drop(route);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::iface::Interface;
    use crate::net::control::line::{MAX_BACKLOG, MAX_INBOX};
    use crate::net::control::lines::Lines;
    use crate::net::control::reception::Reception;
    use crate::proto::handle::Handle;
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    fn reception(tokens: &[Token]) -> Arc<Reception> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let reception = Reception::open(&Interface { name: "lo".into(), address }).expect("a port");
        tokens.iter().for_each(|token| reception.register(*token));
        reception
    }

    fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = attempt() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it never comes");
            std::thread::yield_now();
        }
    }

    fn caller(reception: &Arc<Reception>, token: &Token) -> Channel {
        until(|| {
            reception.poll(Duration::from_secs(20)).expect("no error");
            reception.fetch(token)
        })
    }

    fn heard(channel: &Channel) -> Heard {
        until(|| Some(channel.poll_frame()).filter(|heard| *heard != Heard::Nothing))
    }

    fn kind(heard: Heard) -> Kind {
        let Heard::Frame(frame) = heard else { panic!("{heard:?} instead of a frame") };
        frame.kind
    }

    /// Both ends of a connection that is being set up.
    fn pair(lines: &Lines, reception: &Arc<Reception>, token: Token) -> (Channel, Channel) {
        let near = lines.reach(&Handle { address: reception.address(), token }).expect("dialled").channel;
        until(|| Some(near.poll_connected().expect("somebody listens")).filter(|done| *done));
        near.send(Kind::Hello, vec![token[0]]);
        let far = caller(reception, &token);
        assert_eq!(heard(&far), Heard::Frame(Frame { kind: Kind::Hello, token, body: vec![token[0]] }));
        far.send(Kind::Reply, Vec::new());
        assert_eq!(kind(heard(&near)), Kind::Reply);
        (near, far)
    }

    fn linked((near, far): (Channel, Channel)) -> (Arc<Link>, Arc<Link>) {
        let lines = Arc::default();
        (Link::dialled("far".into(), [0; 16], near, &lines), Link::accepted("near".into(), [0; 16], far))
    }

    fn read_until(link: &Arc<Link>, condition: impl Fn(&Link) -> bool) {
        until(|| {
            link.line().read();
            condition(link).then_some(())
        });
    }

    #[test]
    fn a_goodbye_is_of_one_connection_and_the_end_of_the_line_of_all_others() {
        let (lines, reception) = (Lines::default(), reception(&[[1; 16], [2; 16], [3; 16]]));
        let [one, two, three] = [1, 2, 3].map(|token| linked(pair(&lines, &reception, [token; 16])));
        assert!(Arc::ptr_eq(&one.0.line(), &three.0.line()) && Arc::ptr_eq(&one.1.line(), &three.1.line()));
        drop(one.1);
        three.1.fail("enough");
        read_until(&three.0, Link::is_gone);
        assert!(one.0.is_gone() && !one.0.is_broken(), "{}", one.0.reason());
        assert_eq!((three.0.is_broken(), three.0.reason().as_str()), (true, "the peer gave up: enough"));
        assert!(!two.0.is_gone() && !two.1.is_gone());
        // As if the process had died: nobody says goodbye.
        two.1.line().lock().socket.finish();
        read_until(&two.0, Link::is_gone);
        assert_eq!((two.0.is_broken(), two.0.reason().as_str()), (true, "the peer's process has died"));
        assert!(!one.0.is_broken(), "a goodbye is the last word");
        let again = lines.reach(&Handle { address: reception.address(), token: [2; 16] }).expect("dialled");
        assert!(!again.is_shared, "a line that has ended is not used again");
    }

    #[test]
    fn what_came_before_there_was_a_link_is_told_to_it() {
        let (lines, reception) = (Lines::default(), reception(&[[1; 16], [2; 16]]));
        let ((near, far), (other, _other)) = (pair(&lines, &reception, [1; 16]), pair(&lines, &reception, [2; 16]));
        near.send(Kind::Commit, Vec::new());
        drop(near);
        assert_eq!(kind(heard(&far)), Kind::Commit, "it comes before the goodbye");
        until(|| {
            far.line().read();
            (!far.line().lock().open.contains_key(&[1; 16])).then_some(())
        });
        let link = Link::accepted("near".into(), [0; 16], far);
        assert!(link.is_gone() && !link.is_broken(), "{}", link.reason());
        drop(other);
        until(|| {
            link.line().read();
            link.line().has_ended().then_some(())
        });
        assert!(!link.is_broken(), "a line without channels is closed, which is no death");
    }

    #[test]
    fn strangers_on_a_line_cost_nothing_and_harm_nobody() {
        let (reception, token) = (reception(&[[1; 16], [2; 16]]), [1; 16]);
        let mut raw = TcpStream::connect(reception.address()).expect("it listens");
        let mut say = |kind, token| raw.write_all(&Frame { kind, token, body: vec![7; 100] }.emit());
        say(Kind::Hello, token).expect("sent");
        let channel = caller(&reception, &token);
        assert_eq!(kind(heard(&channel)), Kind::Hello);
        let line = Arc::clone(channel.line());
        for i in 0..20_000u32 {
            let mut unknown = [9; 16];
            unknown[..4].copy_from_slice(&i.to_le_bytes());
            let kinds = [Kind::Hello, Kind::Commit, Kind::Goodbye, Kind::Reply, Kind::Refuse, Kind::Resume];
            say(kinds[i as usize % 6], unknown).expect("it is read");
            line.read();
            let wire = line.lock();
            assert_eq!((wire.routes.len(), wire.open.len()), (1, 1));
            assert!(wire.socket.backlog() < 2 * MAX_BACKLOG, "nobody reads the answers");
        }
        say(Kind::Commit, token).expect("sent");
        assert_eq!(kind(heard(&channel)), Kind::Commit);
    }

    #[test]
    fn whoever_says_too_much_loses_the_line() {
        let (reception, token) = (reception(&[[1; 16]]), [1; 16]);
        let mut raw = TcpStream::connect(reception.address()).expect("it listens");
        let mut say = |kind| raw.write_all(&Frame { kind, token, body: Vec::new() }.emit()).expect("sent");
        say(Kind::Hello);
        let channel = caller(&reception, &token);
        for _ in 0..MAX_INBOX {
            say(Kind::Commit);
        }
        until(|| {
            channel.line().read();
            channel.line().has_ended().then_some(())
        });
        (0..MAX_INBOX).for_each(|_| assert!(matches!(heard(&channel), Heard::Frame(_))));
        assert!(matches!(heard(&channel), Heard::End(End::Wrong(_))));
    }
}
