//! The shared page: what each engine and device can take now, in memory that the daemon writes and every client on the
//! machine may map and read, without a call.
//!
//! The layout is fixed: [`Page`] for version [`VERSION`], all of it native 64-bit words; `gpuadmit_page.h` of the client
//! says the same in C. A later version only uses words that were reserved, or has another number.
//!
//! Each slot is a seqlock over two copies (the kernel's `seqcount_latch_t`; for the memory order see Boehm, "Can Seqlocks
//! Get Along With Programming Language Memory Models?", 2012). While the sequence is even readers take the first copy and
//! while it is odd the second, and the writer writes the other one; a reader takes what it read only when the sequence was
//! the same before and after. There is one writer. Readers never write, so they delay nobody, and a writer that stands
//! still in the middle of a write delays no reader.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// First word of a page: `GPUADMIT` in memory on a little-endian machine.
pub const MAGIC: u64 = u64::from_le_bytes(*b"GPUADMIT");
/// Version of the layout.
pub const VERSION: u64 = 1;
/// Engines that a page has room for.
pub const ENGINES: usize = 64;
/// Devices that a page has room for.
pub const DEVICES: usize = 64;
/// Words of an engine's id: 128 bytes, zeros behind its end.
pub const ENGINE_ID_WORDS: usize = 16;
/// Words of a device's UUID: 96 bytes, zeros behind its end.
pub const DEVICE_ID_WORDS: usize = 12;
/// A figure that is not known. Headroom has a flag of its own, so that nobody takes this for plenty.
pub const UNKNOWN: u64 = u64::MAX;
/// Times that a reader tries: each fails only when a write began or ended meanwhile.
const TRIES: usize = 1000;

/// The page.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Page {
    /// What holds for all of it.
    pub header: Header,
    /// Engines; those without an id are unused.
    pub engines: [Slot<ENGINE_WORDS>; ENGINES],
    /// Devices; those without a UUID are unused.
    pub devices: [Slot<DEVICE_WORDS>; DEVICES],
}

/// What holds for all of a page. Every word is true by itself.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU64,
    /// Size of the page, bytes.
    pub size_bytes: AtomicU64,
    /// Epoch in the reservation ids of the daemon that writes it.
    pub epoch: AtomicU64,
    /// When the daemon last showed that it lives, nanoseconds of `CLOCK_MONOTONIC`.
    pub heartbeat_ns: AtomicU64,
    /// Age of the heartbeat from which the page must not be believed any more, nanoseconds.
    pub max_age_ns: AtomicU64,
    /// 1 when the daemon has stopped: the page must not be believed any more.
    pub closed: AtomicU64,
    /// Requests admitted since the daemon started.
    pub admitted: AtomicU64,
    /// Requests denied since the daemon started.
    pub denied: AtomicU64,
    /// Zero.
    pub reserved: [AtomicU64; 7],
}

/// Words of an engine's figures.
pub const ENGINE_WORDS: usize = 47;
/// Of those, in use; the others are reserved.
pub const ENGINE_USED: usize = 36;
/// Words of a device's figures.
pub const DEVICE_WORDS: usize = 23;

/// `WORDS` words that are read and written as a whole.
#[repr(C)]
#[derive(Debug)]
pub struct Slot<const WORDS: usize> {
    sequence: AtomicU64,
    first: [AtomicU64; WORDS],
    second: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Default for Slot<WORDS> {
    fn default() -> Self {
        let (first, second) = ([const { AtomicU64::new(0) }; WORDS], [const { AtomicU64::new(0) }; WORDS]);
        Self { sequence: AtomicU64::new(0), first, second }
    }
}

impl<const WORDS: usize> Slot<WORDS> {
    /// Writes `words`. There must be one writer only.
    pub fn write(&self, words: &[u64; WORDS]) {
        let sequence = self.sequence.load(Relaxed);
        self.turn(sequence.wrapping_add(1));
        store(&self.first, words);
        self.turn(sequence.wrapping_add(2));
        store(&self.second, words);
    }

    /// Sends readers to the other copy: what was written to it is seen before, what comes is written after.
    fn turn(&self, sequence: u64) {
        self.sequence.store(sequence, Release);
        fence(Release);
    }

    /// The first words of what was last written as a whole; `None` when a write began or ended at every try.
    #[must_use]
    #[inline]
    pub fn read<const FIRST: usize>(&self) -> Option<[u64; FIRST]> {
        let mut words = [0; FIRST];
        for _ in 0..TRIES {
            let sequence = self.sequence.load(Acquire);
            let copy = if sequence.is_multiple_of(2) { &self.first } else { &self.second };
            for (word, shared) in words.iter_mut().zip(copy) {
                *word = shared.load(Relaxed);
            }
            fence(Acquire);
            if self.sequence.load(Relaxed) == sequence {
                return Some(words);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// One word, which may be newer or older than the others: to look for a slot before reading it.
    #[must_use]
    pub fn peek(&self, word: usize) -> u64 {
        self.first.get(word).map_or(0, |word| word.load(Relaxed))
    }
}

fn store<const WORDS: usize>(copy: &[AtomicU64; WORDS], words: &[u64; WORDS]) {
    for (shared, word) in copy.iter().zip(words) {
        shared.store(*word, Relaxed);
    }
}

/// What an engine can take now, as it stands in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFigures {
    /// Id, zeros behind its end.
    pub id: [u64; ENGINE_ID_WORDS],
    /// Number of its `gpuadmit.v1.EngineState`.
    pub state: u64,
    /// 1 where headroom is known; otherwise the classes' figures are 0.
    pub headroom_known: u64,
    /// When the reading that headroom rests on was made, nanoseconds of `CLOCK_MONOTONIC`.
    pub read_at_ns: u64,
    /// When this was written.
    pub written_at_ns: u64,
    /// Headroom of interactive, standard, batch.
    pub classes: [ClassRoom; 3],
    /// Reservations held.
    pub reservations: u64,
    /// Admitted since the engine was found.
    pub admitted: u64,
    /// Denied, but for callers' mistakes.
    pub denied: u64,
    /// Demand against what it can do, in thousandths; [`UNKNOWN`].
    pub demand_permille: u64,
}

/// Headroom for one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRoom {
    /// Blocks that can still be promised.
    pub blocks: u64,
    /// With the error band subtracted.
    pub blocks_lower: u64,
    /// `blocks` in tokens.
    pub tokens: u64,
    /// `blocks_lower` in tokens.
    pub tokens_lower: u64,
}

/// A device's memory, as it stands in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFigures {
    /// UUID, zeros behind its end.
    pub uuid: [u64; DEVICE_ID_WORDS],
    /// Free memory, bytes; [`UNKNOWN`].
    pub free_bytes: u64,
    /// All memory, bytes; [`UNKNOWN`].
    pub total_bytes: u64,
    /// When that was read, nanoseconds of `CLOCK_MONOTONIC`; [`UNKNOWN`].
    pub read_at_ns: u64,
}

/// `name` as words, zeros behind its end; what is longer is cut off.
#[must_use]
pub fn pack<const WORDS: usize>(name: &str) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        for (to, from) in padded.iter_mut().zip(bytes) {
            *to = *from;
        }
        *word = u64::from_ne_bytes(padded);
    }
    words
}

/// The name in `words`; what is no UTF-8 is replaced.
#[must_use]
pub fn unpack<const WORDS: usize>(words: &[u64; WORDS]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl EngineFigures {
    /// As words of a slot.
    #[must_use]
    pub fn to_words(&self) -> [u64; ENGINE_WORDS] {
        let heads = [self.state, self.headroom_known, self.read_at_ns, self.written_at_ns];
        let rooms = self
            .classes
            .iter()
            .flat_map(|room| [room.blocks, room.blocks_lower, room.tokens, room.tokens_lower]);
        let tails = [self.reservations, self.admitted, self.denied, self.demand_permille];
        let mut words = [0; ENGINE_WORDS];
        let all = self.id.into_iter().chain(heads).chain(rooms).chain(tails);
        for (word, value) in words.iter_mut().zip(all) {
            *word = value;
        }
        words
    }

    /// From the words of a slot that are in use; `None` for an unused one.
    #[must_use]
    #[inline]
    pub fn from_words(words: &[u64; ENGINE_USED]) -> Option<Self> {
        let (id, rest) = words.split_first_chunk::<ENGINE_ID_WORDS>()?;
        let ([state, headroom_known, read_at_ns, written_at_ns], rest) = rest.split_first_chunk::<4>()?;
        let (rooms, rest) = rest.split_first_chunk::<12>()?;
        let ([reservations, admitted, denied, demand_permille], _) = rest.split_first_chunk::<4>()?;
        let mut classes = [ClassRoom::default(); 3];
        for (class, room) in classes.iter_mut().zip(rooms.as_chunks::<4>().0) {
            let [blocks, blocks_lower, tokens, tokens_lower] = *room;
            *class = ClassRoom { blocks, blocks_lower, tokens, tokens_lower };
        }
        (*id != [0; ENGINE_ID_WORDS]).then_some(Self {
            id: *id,
            state: *state,
            headroom_known: *headroom_known,
            read_at_ns: *read_at_ns,
            written_at_ns: *written_at_ns,
            classes,
            reservations: *reservations,
            admitted: *admitted,
            denied: *denied,
            demand_permille: *demand_permille,
        })
    }
}

impl DeviceFigures {
    /// As words of a slot.
    #[must_use]
    pub fn to_words(&self) -> [u64; DEVICE_WORDS] {
        let mut words = [0; DEVICE_WORDS];
        let all = self.uuid.into_iter().chain([self.free_bytes, self.total_bytes, self.read_at_ns]);
        for (word, value) in words.iter_mut().zip(all) {
            *word = value;
        }
        words
    }

    /// From words of a slot; `None` for an unused one.
    #[must_use]
    #[inline]
    pub fn from_words(words: &[u64; DEVICE_WORDS]) -> Option<Self> {
        let (uuid, rest) = words.split_first_chunk::<DEVICE_ID_WORDS>()?;
        let ([free_bytes, total_bytes, read_at_ns], _reserved) = rest.split_first_chunk::<3>()?;
        (*uuid != [0; DEVICE_ID_WORDS]).then_some(Self {
            uuid: *uuid,
            free_bytes: *free_bytes,
            total_bytes: *total_bytes,
            read_at_ns: *read_at_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_what_the_c_header_says() {
        assert_eq!(size_of::<Header>(), 128);
        assert_eq!(size_of::<Slot<ENGINE_WORDS>>(), 760); // (1 + 2 × 47) words
        assert_eq!(size_of::<Slot<DEVICE_WORDS>>(), 376); // (1 + 2 × 23) words
        assert_eq!(size_of::<Page>(), 128 + 64 * 760 + 64 * 376);
        assert_eq!(std::mem::offset_of!(Page, engines), 128);
    }

    #[test]
    fn figures_survive_their_slot() {
        let class = |from| ClassRoom {
            blocks: from,
            blocks_lower: from + 1,
            tokens: from + 2,
            tokens_lower: from + 3,
        };
        let figures = EngineFigures {
            id: pack("vllm-8000"),
            state: 2,
            headroom_known: 1,
            read_at_ns: 3,
            written_at_ns: 4,
            classes: [class(10), class(20), class(30)],
            reservations: 5,
            admitted: 6,
            denied: 7,
            demand_permille: UNKNOWN,
        };
        let slot = Slot::default();
        assert_eq!(slot.read().and_then(|words| EngineFigures::from_words(&words)), None);
        slot.write(&figures.to_words());
        assert_eq!(slot.read().and_then(|words| EngineFigures::from_words(&words)), Some(figures));
        let device = DeviceFigures { uuid: pack("GPU-1"), free_bytes: 1, total_bytes: 2, read_at_ns: 3 };
        assert_eq!(DeviceFigures::from_words(&device.to_words()), Some(device));
    }

    #[test]
    fn names_are_cut_where_there_is_no_room() {
        assert_eq!(unpack(&pack::<2>("0123456789")), "0123456789");
        assert_eq!(unpack(&pack::<1>("0123456789")), "01234567");
        assert_eq!(unpack(&pack::<1>("")), "");
    }

    #[test]
    fn a_writer_that_stands_still_leaves_what_was_written_before_or_after() {
        let slot = Slot::<2>::default();
        assert_eq!(slot.read(), Some([0, 0]));
        slot.write(&[8, 9]);
        assert_eq!(slot.read(), Some([8, 9]));
        // It stands still with half of the first copy written, and then of the second.
        slot.turn(3);
        slot.first[0].store(10, Relaxed);
        assert_eq!(slot.read(), Some([8, 9]));
        slot.first[1].store(11, Relaxed);
        slot.turn(4);
        slot.second[0].store(10, Relaxed);
        assert_eq!(slot.read(), Some([10, 11]));
    }
}
