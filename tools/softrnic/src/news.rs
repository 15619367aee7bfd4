//! Events of ports and devices: told by whoever changes them, heard by every process that has the device open.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::context::Context;
use crate::fabric::file::Control;
use crate::fabric::layout::PROCS;
use crate::fabric::slots::NEWS;
use crate::fabric::{Fabric, lock};
use crate::route::Place;

/// One event. Port 0: it concerns the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub(crate) kind: u32,
    pub(crate) place: Place,
}

impl News {
    fn to_word(self) -> u64 {
        u64::from(self.kind) | (self.place.device as u64) << 8 | u64::from(self.place.port) << 16
    }

    fn from_word(word: u64) -> Self {
        let [kind, device, port, ..] = word.to_le_bytes();
        Self { kind: u32::from(kind), place: Place { device: usize::from(device), port: u32::from(port) } }
    }
}

impl Fabric {
    /// Has every route judged anew. The caller has made the change already.
    pub(crate) fn note_change(&self, _control: &Control<'_>) {
        self.header().changes.fetch_add(1, SeqCst);
    }

    /// Tells all processes. What the news is about can be seen already.
    pub(crate) fn tell(&self, _control: &Control<'_>, news: News) {
        let header = self.header();
        let number = header.news_count.load(SeqCst);
        header.news[number as usize % NEWS].store(news.to_word(), SeqCst);
        header.news_count.store(number + 1, SeqCst);
        for id in (0..PROCS).map(|index| self.proc(index).id.load(SeqCst)).filter(|&id| id != 0) {
            self.ring(id);
        }
    }

    /// News that came since number `since`, and the number to ask from next time. Of very many the oldest are lost.
    pub(crate) fn news_since(&self, since: u64) -> (Vec<News>, u64) {
        let header = self.header();
        let count = header.news_count.load(SeqCst);
        let oldest = since.max(count.saturating_sub(NEWS as u64));
        let words = (oldest..count).map(|number| header.news[number as usize % NEWS].load(SeqCst));
        (words.map(News::from_word).collect(), count)
    }

    /// For the service thread: passes news on to the open contexts, and empties the queues of failed devices.
    pub(crate) fn hear(&self) {
        let contexts: Vec<Arc<Context>> = {
            let mut known = lock(&self.contexts);
            known.retain(|context| context.strong_count() != 0);
            known.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        contexts.iter().for_each(|context| context.hear());
        if (0..self.shape.devices()).any(|device| self.is_failed(device)) {
            let failed: Vec<_> = lock(&self.qps).iter().filter(|qp| self.is_failed(qp.device)).cloned().collect();
            for qp in failed {
                qp.see_failure_through();
            }
        }
    }
}
