//! A file mapped as words to write: all that is unsafe about it.

use std::{ffi::c_void, fs::File, io, num::NonZeroUsize, ptr::NonNull, sync::atomic::AtomicU64};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The mapping; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    bytes: NonZeroUsize,
}

// SAFETY: it is nothing but atomics, and the mapping belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `file`, which nobody else may make shorter and which is at least `words` words long.
    pub(super) fn writable(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(size_of::<AtomicU64>()).and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self { start: start.cast(), words, bytes })
    }

    pub(super) const fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped until `self` is dropped, their start is aligned to a memory page, and any bits
        // are valid for atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above with this size, and no reference from `words` outlives `self`.
        let _ = unsafe { munmap(self.start.cast::<c_void>(), self.bytes.get()) };
    }
}
