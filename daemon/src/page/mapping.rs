//! A file mapped as a [`Page`] to write: all that is unsafe about it.

use std::{ffi::c_void, fs::File, io, num::NonZeroUsize, ptr::NonNull};

use gpuadmit_proto::page::Page;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The mapping; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Mapping(NonNull<Page>);

// SAFETY: a page is nothing but atomics, and the mapping belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `file`, which nobody else may make shorter and which is as long as a page.
    pub(super) fn writable(file: &File) -> io::Result<Self> {
        let size = NonZeroUsize::new(size_of::<Page>()).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(None, size, protection, flags, file, 0) }?;
        Ok(Self(start.cast()))
    }

    pub(super) const fn page(&self) -> &Page {
        // SAFETY: it is mapped until `self` is dropped, its start is aligned to a memory page, it is as long as a `Page`,
        // and any bits are valid for atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above with this size, and no reference from `page` outlives `self`.
        let _ = unsafe { munmap(self.0.cast::<c_void>(), size_of::<Page>()) };
    }
}
