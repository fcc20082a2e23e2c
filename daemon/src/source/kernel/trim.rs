//! Giving memory that was freed back to the system.

/// Gives back what the allocator holds free. Only glibc's keeps much; others do so by themselves.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim (malloc.h) takes no pointer and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
