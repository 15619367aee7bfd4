//! Connections whose line is lost, on the side that has dialled it: their peer is dialled again until that shows what has
//! become of it, or the connection is closed here. A [watcher](super::watcher) does it.
//!
//! ```text
//! Again ──► Trying ──► Asked ──► the connection goes on over the new line
//!   ▲         │          │ the peer does not know the connection: it has closed it
//!   │         │ the port is closed: the peer's process has died
//!   └─────────┴──────────┘ anything else
//! ```
//!
//! There is no limit to how long this goes on: while the network is away nobody can tell, and [`crate::net::data::probe`] tells by the
//! device of a peer that will never answer. Connections that were on one line meet on one new line.

use super::channel::{Channel, Heard};
use super::line::{End, Line};
use super::link::Link;
use crate::proto::frame::Kind;
use crate::proto::handle::Handle;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// One connection on its way to another line.
#[derive(Debug)]
pub struct Redial {
    link: Weak<Link>,
    /// The number of the latest resumption that was sent.
    attempt: u32,
    pause: Duration,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The peer is dialled at the given time.
    Again(Instant),
    /// The line is being made, unless there is one.
    Trying(Channel),
    /// The peer has been asked whether it knows the connection.
    Asked(Channel),
    /// It is known what has become of the peer, or the connection is no more.
    Over,
}

/// The first pause after an attempt; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest one.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a TCP connection may take: the kernel itself would repeat the first packet after up to a minute only.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

impl Redial {
    /// `link` needs another line. The more often it has needed one before, the longer that takes: something between the two
    /// processes may end every line as soon as it is there.
    pub fn new(link: Weak<Link>) -> Self {
        let before = link.upgrade().map_or(0, |link| link.resumption(0).attempt - 1);
        let pause = LAST_PAUSE.min(FIRST_PAUSE * (1 << before.min(10)));
        Self { link, attempt: 0, pause, step: Step::Again(Instant::now() + pause) }
    }

    /// Does what can be done now; whether there is more to do. New lines are shown to `watch`.
    pub fn advance(&mut self, watch: &mut impl FnMut(&Arc<Line>)) -> bool {
        loop {
            let Some(link) = self.link.upgrade() else {
                // Closed here; if the peer has been asked, it is told now.
                self.step = Step::Over;
                return false;
            };
            let (step, progress) = match std::mem::replace(&mut self.step, Step::Over) {
                Step::Again(when) if Instant::now() < when => (Step::Again(when), false),
                Step::Again(_) => self.dial(&link, watch),
                Step::Trying(channel) => self.attempt(&link, channel),
                Step::Asked(channel) => self.hear(&link, channel, watch),
                Step::Over => return false,
            };
            self.step = step;
            if !progress {
                return !matches!(self.step, Step::Over);
            }
        }
    }

    fn dial(&mut self, link: &Arc<Link>, watch: &mut impl FnMut(&Arc<Line>)) -> (Step, bool) {
        let handle = Handle { address: link.line().peer(), token: link.token() };
        match link.lines().map(|lines| lines.reach(&handle)) {
            Some(Ok(reach)) => {
                watch(reach.channel.line());
                (Step::Trying(reach.channel), true)
            }
            Some(Err(e)) => {
                log::debug!("dialling {} again: {e}", handle.address);
                self.again()
            }
            None => (Step::Over, false),
        }
    }

    fn attempt(&mut self, link: &Arc<Link>, channel: Channel) -> (Step, bool) {
        match channel.poll_connected() {
            Ok(false) => {
                channel.line().give_up_dialling(DIAL_LIMIT);
                (Step::Trying(channel), false)
            }
            Ok(true) => {
                let resumption = link.resumption(self.attempt);
                self.attempt = resumption.attempt;
                channel.send(Kind::Resume, resumption.frame(link.token()).body);
                (Step::Asked(channel), true)
            }
            Err(libc::ECONNREFUSED) => {
                link.handle_death();
                (Step::Over, false)
            }
            Err(_) => self.again(),
        }
    }

    fn hear(&mut self, link: &Arc<Link>, channel: Channel, watch: &mut impl FnMut(&Arc<Line>)) -> (Step, bool) {
        match channel.poll_frame() {
            Heard::Nothing => return (Step::Asked(channel), false),
            Heard::Frame(frame) if frame.kind == Kind::Resume => {
                log::debug!("the control connection to {} is back", link.peer());
                link.resume(channel, self.attempt);
                // It may have ended meanwhile.
                watch(&link.line());
            }
            Heard::Frame(frame) if frame.kind == Kind::Refuse => link.handle_unknown(&frame.body_text()),
            Heard::Frame(frame) => link.handle_frame(&frame),
            // The port may have too many callers, and the new line may be lost too.
            Heard::End(End::Closed | End::Lost(_) | End::Unreachable(_)) => return self.again(),
            // Another program has the port.
            Heard::End(End::Wrong(why) | End::Refused(why)) => link.handle_unknown(&why),
        }
        (Step::Over, false)
    }

    fn again(&mut self) -> (Step, bool) {
        let when = Instant::now() + self.pause;
        self.pause = LAST_PAUSE.min(2 * self.pause);
        (Step::Again(when), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::iface::Interface;
    use crate::net::control::line::tell;
    use crate::net::control::lines::Lines;
    use crate::net::control::reception::Reception;
    use crate::proto::frame::Frame;
    use crate::proto::handle::{Secret, Token};
    use crate::proto::handshake::Resume;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    const TOKEN: Token = [1; 16];

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

    /// A port and connections to it, all of one line, by their secrets.
    struct Scene {
        reception: Arc<Reception>,
        near: Vec<Arc<Link>>,
        far: Vec<Arc<Link>>,
    }

    impl Scene {
        fn new(secrets: &[Secret]) -> Self {
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let reception = Reception::open(&Interface { name: "lo".into(), address }).expect("a port");
            let (lines, mut near, mut far) = (Arc::<Lines>::default(), Vec::new(), Vec::new());
            for secret in secrets {
                // The token is that of the secret's listener.
                let token = *secret;
                reception.register(token);
                let channel = lines.reach(&Handle { address: reception.address(), token }).expect("dialled").channel;
                until(|| channel.poll_connected().expect("somebody listens").then_some(()));
                channel.send(Kind::Hello, Vec::new());
                let caller = until(|| {
                    reception.poll(Duration::from_secs(20)).expect("no error");
                    reception.fetch(&token)
                });
                assert!(matches!(caller.poll_frame(), Heard::Frame(frame) if frame.kind == Kind::Hello));
                near.push(Link::dialled("far".into(), *secret, channel, &lines));
                far.push(Link::accepted("near".into(), *secret, caller));
            }
            Self { reception, near, far }
        }

        fn poll(&self) {
            self.reception.poll(Duration::from_secs(20)).expect("no error");
        }

        /// Loses the line at the end that has dialled, and goes on until it is known what becomes of the connections.
        fn lose(&self) -> Arc<Line> {
            let line = self.near[0].line();
            lose(&line);
            assert!(self.near.iter().all(|link| link.is_lost()));
            let mut redials: Vec<_> = line.take_lost().into_iter().map(Redial::new).collect();
            assert_eq!(redials.len(), self.near.len());
            until(|| {
                self.poll();
                redials.retain_mut(|redial| redial.advance(&mut |_| {}));
                redials.is_empty().then_some(())
            });
            line
        }
    }

    fn lose(line: &Arc<Line>) {
        let mut news = Vec::new();
        line.finish(&mut line.lock(), End::Lost("a test".into()), &mut news);
        tell(news);
    }

    fn says(link: &Link) -> String {
        format!("{:?} {}", link.state(), link.reason())
    }

    #[test]
    fn connections_go_on_together_over_another_line() {
        let scene = Scene::new(&[TOKEN, [2; 16], [3; 16]]);
        let old = scene.far[0].line();
        let dead = scene.lose();
        for (near, far) in scene.near.iter().zip(&scene.far) {
            assert!(near.state().is_open() && far.state().is_open(), "{} {}", says(near), says(far));
            assert!(Arc::ptr_eq(&near.line(), &scene.near[0].line()) && !Arc::ptr_eq(&near.line(), &dead));
            assert!(Arc::ptr_eq(&far.line(), &scene.far[0].line()) && !Arc::ptr_eq(&far.line(), &old));
        }
        // What is heard of the old line is of the past.
        let mut news = Vec::new();
        old.finish(&mut old.lock(), End::Closed, &mut news);
        assert!(news.is_empty());
        scene.far[0].handle_end(Arc::as_ptr(&old), &End::Closed);
        assert!(scene.far[0].state().is_open());
        // And the new one is there for both.
        scene.near[1].fail("enough");
        scene.far[2].fail("too much");
        until(|| {
            scene.poll();
            scene.near[0].line().read();
            (scene.far[1].is_broken() && scene.near[2].is_broken()).then_some(())
        });
        assert_eq!(scene.far[1].reason(), "the peer gave up: enough");
        assert_eq!(scene.near[2].reason(), "the peer gave up: too much");
        assert!(scene.near[0].state().is_open() && scene.far[0].state().is_open());
    }

    #[test]
    fn a_failure_while_there_is_no_line_is_told_once_there_is_one() {
        let scene = Scene::new(&[TOKEN]);
        lose(&scene.far[0].line());
        scene.far[0].fail("a device is lost");
        scene.lose();
        until(|| {
            scene.near[0].line().read();
            scene.near[0].is_broken().then_some(())
        });
        assert_eq!(scene.near[0].reason(), "the peer gave up: a device is lost");
    }

    /// The peer may have closed it in good order, or have never got the commit.
    #[test]
    fn a_connection_that_the_peer_does_not_know_is_closed() {
        let mut scene = Scene::new(&[TOKEN, [2; 16]]);
        lose(&scene.far[1].line());
        drop(scene.far.pop());
        scene.lose();
        assert!(scene.near[0].state().is_open(), "{}", says(&scene.near[0]));
        assert!(scene.near[1].is_gone() && !scene.near[1].is_broken(), "{}", says(&scene.near[1]));
    }

    #[test]
    fn a_closed_port_is_a_death() {
        let Scene { reception, near, far } = Scene::new(&[TOKEN]);
        let line = near[0].line();
        lose(&line);
        drop((far, reception));
        let mut redial = Redial::new(line.take_lost().pop().expect("one"));
        // As a watcher may do that is woken by the refusal before the redial looks.
        let mut read = |line: &Arc<Line>| {
            line.read();
        };
        until(|| (!redial.advance(&mut read)).then_some(()));
        assert_eq!((near[0].is_broken(), near[0].reason().as_str()), (true, "the peer's process has died"));
    }

    #[test]
    fn a_line_that_is_lost_again_and_again_is_dialled_ever_more_slowly() {
        let scene = Scene::new(&[TOKEN]);
        let pause = || Redial::new(Arc::downgrade(&scene.near[0])).pause;
        assert_eq!(pause(), FIRST_PAUSE);
        for times in 1..4 {
            scene.lose();
            assert_eq!(pause(), FIRST_PAUSE * (1 << times));
        }
        assert!(Redial::new(Weak::new()).pause <= LAST_PAUSE);
    }

    /// Whoever does not know a connection's secret, or repeats what was said before, gets nothing and changes nothing.
    #[test]
    fn strangers_do_not_take_over_connections() {
        let scene = Scene::new(&[TOKEN]);
        scene.lose();
        let (line, good) = (scene.far[0].line(), Resume { secret: TOKEN, attempt: 9 });
        let cases = [
            (Resume { secret: [5; 16], ..good }, TOKEN, true),
            (good, [2; 16], true),
            // The first attempt again, as a line delivers it that was given up.
            (Resume { attempt: 1, ..good }, TOKEN, false),
        ];
        for (resume, token, is_refused) in cases {
            let mut raw = TcpStream::connect(scene.reception.address()).expect("it listens");
            raw.write_all(&resume.frame(token).emit()).expect("sent");
            (0..200).for_each(|_| scene.poll());
            assert!(Arc::ptr_eq(&line, &scene.far[0].line()) && scene.far[0].state().is_open(), "{resume:?}");
            raw.set_nonblocking(true).expect("non-blocking");
            let mut answer = [0; 4096];
            let count = raw.read(&mut answer).unwrap_or(0);
            let mut assembler = crate::proto::frame::Assembler::default();
            assembler.handle_bytes(&answer[..count]);
            let refusal = assembler.poll_frame().expect("a frame").filter(|frame: &Frame| frame.kind == Kind::Refuse);
            assert_eq!(refusal.is_some(), is_refused, "{resume:?}");
        }
        // Who knows it is the peer.
        let mut raw = TcpStream::connect(scene.reception.address()).expect("it listens");
        raw.write_all(&good.frame(TOKEN).emit()).expect("sent");
        until(|| {
            scene.poll();
            (!Arc::ptr_eq(&line, &scene.far[0].line())).then_some(())
        });
    }
}
