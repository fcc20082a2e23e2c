//! A file mapped as a [`Page`] to be read: all that is unsafe about it.

use std::{ffi::c_void, fs::File, io, ptr::NonNull};

use gpuadmit_proto::page::Page;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The mapping; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Mapping(NonNull<Page>);

// SAFETY: a page is nothing but atomics, and the mapping belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: likewise; nothing here changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file`, which is as long as a page. The daemon, which alone may write it, never makes it shorter.
    pub(super) fn readable(file: &File) -> io::Result<Self> {
        let (size, flags) = (size_of::<Page>(), MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), size, ProtFlags::READ, flags, file, 0) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self(start.cast()))
    }

    pub(super) const fn page(&self) -> &Page {
        // SAFETY: it is mapped until `self` is dropped, its start is aligned to a memory page, it is as long as a `Page`,
        // and any bits are valid for atomics. Those are only ever loaded, 64 bits at once and not stricter than acquire,
        // which memory that may not be written allows (std::sync::atomic, "Atomic accesses to read-only memory").
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above with this size, and no reference from `page` outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast::<c_void>(), size_of::<Page>()) };
    }
}
