//! Finds the probed calls in a library's file (ELF). Takes any bytes.

use std::{collections::BTreeMap, fs::File};

use gpuadmit_abi::CUDA_CALLS;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, read::ReadCache};

/// Calls that work on the calling thread's own default stream go by a name with this at its end.
const PER_THREAD: &str = "_ptsz";

/// Why a file has no probed calls.
#[derive(Debug, thiserror::Error)]
pub enum SymbolsError {
    /// It is no library.
    #[error("it cannot be read as a library: {0}")]
    Elf(#[from] object::Error),
    /// None of the calls is in it.
    #[error("it has none of the calls")]
    None,
}

/// Where the calls are in the file, bytes from its start: by index of [`CUDA_CALLS`], each place once.
pub type Offsets = BTreeMap<usize, Vec<u64>>;

/// Those of the library in `file`; of it, only what is asked for is read.
///
/// # Errors
/// [`SymbolsError`].
pub fn offsets(file: &File) -> Result<Offsets, SymbolsError> {
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)?;
    let segments: Vec<(u64, u64, u64)> = elf
        .segments()
        .map(|segment| (segment.address(), segment.file_range().0, segment.file_range().1))
        .collect();
    let in_file = |address: u64| {
        segments.iter().find_map(|(start, offset, length)| {
            let within = address.checked_sub(*start).filter(|within| within < length)?;
            offset.checked_add(within)
        })
    };
    let mut found = Offsets::new();
    for symbol in elf.dynamic_symbols().filter(object::ObjectSymbol::is_definition) {
        let Ok(name) = symbol.name() else { continue };
        let name = name.strip_suffix(PER_THREAD).unwrap_or(name);
        let Some(call) = CUDA_CALLS.iter().position(|call| *call == name) else { continue };
        if let Some(offset) = in_file(symbol.address()) {
            // Two names may stand for one place.
            let places = found.entry(call).or_default();
            if !places.contains(&offset) {
                places.push(offset);
            }
        }
    }
    if found.is_empty() { Err(SymbolsError::None) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_no_library_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n"] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert!(matches!(offsets(&file), Err(SymbolsError::Elf(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_library_without_the_calls_is_refused() {
        let own = File::open("/proc/self/exe").unwrap();
        assert!(matches!(offsets(&own), Err(SymbolsError::None)));
    }
}
