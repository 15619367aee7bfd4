//! A GPU, with all that copies need made ready beforehand.
//!
//! NCCL's kernels spin until our data arrives: whatever waits for the device would wait for ever. So streams, events
//! and pinned memory are there, and have been used once, before a region is registered; afterwards there are only
//! asynchronous copies, and looks at events. The streams have the highest priority, not to queue behind such a kernel.

use std::sync::{Mutex, OnceLock};

use crate::copy::gpu::cuda::{Code, Cuda, Entered, Handle};
use crate::copy::piece::Direction;
use crate::host::lock::lock;
use crate::limits::JOBS;

/// GPUs of a machine that we know what to do with.
const CARDS: usize = 64;
/// Each job may have a copy under way at either end, and both ends may be this process.
const EVENTS: usize = 4 * JOBS;

/// One GPU.
#[derive(Debug)]
pub(crate) struct Card {
    cuda: &'static Cuda,
    context: Handle,
    /// From the GPU, to the GPU.
    streams: [Handle; 2],
    free_events: Mutex<Vec<Handle>>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

static READY: [OnceLock<Card>; CARDS] = [const { OnceLock::new() }; CARDS];
/// Serialises making cards ready.
static MAKING: Mutex<()> = Mutex::new(());

/// The GPU `ordinal`, if it has been made ready.
pub(crate) fn get(ordinal: usize) -> Option<&'static Card> {
    READY.get(ordinal)?.get()
}

/// The GPU `ordinal`, ready for copies between its memory and the `stage`.
///
/// # Safety
/// The `stage`, an address and bytes, is never unmapped and has storage.
pub(crate) unsafe fn make_ready(
    stage: (*mut u8, usize),
    cuda: &'static Cuda,
    ordinal: usize,
) -> Result<&'static Card, String> {
    let place = READY.get(ordinal).ok_or_else(|| format!("GPU {ordinal} is beyond the {CARDS} that can be used"))?;
    let _making = lock(&MAKING);
    if let Some(card) = place.get() {
        return Ok(card);
    }
    let describe = |code: Code| format!("cannot use GPU {ordinal}: {}", cuda.name(code));
    // SAFETY: by the caller.
    let card = unsafe { Card::new(stage, cuda, ordinal) }.map_err(describe)?;
    card.warm_up().map_err(describe)?;
    Ok(place.get_or_init(|| card))
}

impl Card {
    /// # Safety
    /// As for [`make_ready`].
    unsafe fn new((stage, bytes): (*mut u8, usize), cuda: &'static Cuda, ordinal: usize) -> Result<Self, Code> {
        let context = cuda.primary_context(ordinal)?;
        let _entered = cuda.enter(context)?;
        // SAFETY: by the caller.
        unsafe { cuda.register(stage, bytes) }?;
        let streams = [cuda.stream()?, cuda.stream()?];
        let events: Result<Vec<_>, _> = (0..EVENTS).map(|_| cuda.event()).collect();
        Ok(Self { cuda, context, streams, free_events: Mutex::new(events?) })
    }

    /// One copy each way: what the driver does at the first of a kind is done now.
    fn warm_up(&self) -> Result<(), Code> {
        const BYTES: usize = 4096;
        let memory = {
            let _entered = self.cuda.enter(self.context)?;
            self.cuda.allocate(BYTES)?
        };
        let mut buffer = [0u8; BYTES];
        for direction in [Direction::In, Direction::Out] {
            // SAFETY: both buffers outlive the wait below.
            let ticket = unsafe { self.begin((memory, BYTES), direction, buffer.as_mut_ptr()) }?;
            while !ticket.is_over()? {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Begins a copy between `(address, bytes)` of the GPU and `stage`.
    ///
    /// # Safety
    /// Both stay valid until the ticket is over.
    pub(crate) unsafe fn begin(
        &self,
        theirs: (u64, usize),
        direction: Direction,
        stage: *mut u8,
    ) -> Result<Flight<'_>, Code> {
        let _entered = self.cuda.enter(self.context)?;
        let event = lock(&self.free_events).pop();
        let event = event.map_or_else(|| self.cuda.event(), Ok)?;
        let flight = Flight { card: self, event };
        let stream = self.streams[usize::from(direction == Direction::In)];
        // SAFETY: by the caller.
        unsafe { self.cuda.copy(theirs, stage, direction == Direction::Out, stream, event) }?;
        Ok(flight)
    }

    /// Works in its context from here on, until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered, Code> {
        self.cuda.enter(self.context)
    }

    pub(crate) fn name_of(&self, code: Code) -> String {
        self.cuda.name(code)
    }
}

/// A copy that a GPU has been asked for.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    card: &'a Card,
    event: Handle,
}

impl Flight<'_> {
    pub(crate) fn is_over(&self) -> Result<bool, Code> {
        let _entered = self.card.cuda.enter(self.card.context)?;
        self.card.cuda.is_over(self.event)
    }

    pub(crate) fn card(&self) -> &Card {
        self.card
    }
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Flight<'_> {}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        lock(&self.card.free_events).push(self.event);
    }
}
