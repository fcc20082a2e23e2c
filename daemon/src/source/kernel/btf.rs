//! Reads the kernel's description of its own types, `/sys/kernel/btf/vmlinux` (Documentation/bpf/btf.rst): where its
//! structures keep their members, and what its tracepoints pass. Takes any bytes.

use std::collections::BTreeMap;

/// Largest description read, bytes; that of Linux 6.18 has 6 MiB.
pub const MAX_BYTES: u64 = 64 << 20;
/// Structures within structures without a name that are looked into.
const MAX_DEPTH: u32 = 8;
/// Modifiers and names between a use of a type and the type itself that are followed.
const MAX_ALIASES: u32 = 32;
const MAGIC: u16 = 0xeb9f;
/// Bytes of a type without what follows it.
const TYPE_BYTES: usize = 12;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const RESTRICT: u32 = 11;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Why bytes are no description of types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Another format, or of a machine with another byte order.
    #[error("it does not begin with the magic number {MAGIC:#x}")]
    Magic,
    /// A part lies outside.
    #[error("it is cut off: {0} lie outside of it")]
    CutOff(&'static str),
    /// A kind of a later version, whose length is not known.
    #[error("type {id} is of kind {kind}; known are 1 to {ENUM64}")]
    Kind {
        /// Which type.
        id: u32,
        /// Its kind.
        kind: u32,
    },
}

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the start of the outermost structure.
    pub offset: u32,
    /// Id of its type.
    pub kind: u32,
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type lies; ids count from 1.
    places: Vec<usize>,
    /// Ids of structures and of names given to types, by name.
    structures: BTreeMap<&'a [u8], u32>,
    names: BTreeMap<&'a [u8], u32>,
}

#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// How many members, parameters, … follow.
    length: usize,
    /// Whether offsets of members share their word with the size of a bit field.
    bit_fields: bool,
    /// Size, or the type that this one refers to.
    size_or_type: u32,
    /// Where what follows begins.
    rest: usize,
}

impl<'a> Btf<'a> {
    /// The types in `bytes`.
    ///
    /// # Errors
    /// [`BtfError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let magic = bytes.first_chunk().map(|magic| u16::from_ne_bytes(*magic));
        if magic != Some(MAGIC) {
            return Err(BtfError::Magic);
        }
        let header = |at| word(bytes, at).ok_or(BtfError::CutOff("the header"));
        let start = header(4)?;
        let types = part(bytes, start, header(8)?, header(12)?).ok_or(BtfError::CutOff("the types"))?;
        let strings = part(bytes, start, header(16)?, header(20)?).ok_or(BtfError::CutOff("the names"))?;
        let mut btf =
            Self { types, strings, places: vec![], structures: BTreeMap::new(), names: BTreeMap::new() };
        btf.index()?;
        Ok(btf)
    }

    fn index(&mut self) -> Result<(), BtfError> {
        let mut place = 0;
        while place < self.types.len() {
            let id = u32::try_from(self.places.len()).unwrap_or(u32::MAX).saturating_add(1);
            let found = self.type_at(place).ok_or(BtfError::CutOff("the last type"))?;
            let rest = follows(found.kind, found.length).ok_or(BtfError::Kind { id, kind: found.kind })?;
            match (found.kind, self.string(found.name)) {
                (_, b"") => {}
                (STRUCT, name) => _ = self.structures.entry(name).or_insert(id),
                (TYPEDEF, name) => _ = self.names.entry(name).or_insert(id),
                _ => {}
            }
            self.places.push(place);
            place = found.rest.saturating_add(rest);
        }
        Ok(())
    }

    /// The member called `name` of the structure called `structure`, members of its nameless parts included.
    #[must_use]
    pub fn member(&self, structure: &str, name: &str) -> Option<Member> {
        let id = self.structures.get(structure.as_bytes())?;
        let (bits, kind) = self.member_of(*id, name.as_bytes(), MAX_DEPTH)?;
        Some(Member { offset: bits / 8, kind })
    }

    /// Offset of that member.
    #[must_use]
    pub fn offset(&self, structure: &str, name: &str) -> Option<u32> {
        self.member(structure, name).map(|member| member.offset)
    }

    /// Name of the structure that `id` is, or an array of which it is.
    #[must_use]
    pub fn structure_name(&self, id: u32) -> Option<&'a str> {
        let mut found = self.resolve(id)?;
        if found.kind == ARRAY {
            found = self.resolve(word(self.types, found.rest)?)?;
        }
        (found.kind == STRUCT).then(|| std::str::from_utf8(self.string(found.name)).ok())?
    }

    /// Bytes of an element of the array that `id` is.
    #[must_use]
    pub fn element_bytes(&self, id: u32) -> Option<u32> {
        let array = self.resolve(id).filter(|found| found.kind == ARRAY)?;
        let element = self.resolve(word(self.types, array.rest)?)?;
        matches!(element.kind, INT | STRUCT | UNION | ENUM | ENUM64).then_some(element.size_or_type)
    }

    /// What the tracepoint called `name` passes: for each argument, whether it is a pointer. `None`: there is none.
    #[must_use]
    pub fn tracepoint(&self, name: &str) -> Option<Vec<bool>> {
        let typedef = self.names.get(format!("btf_trace_{name}").as_bytes())?;
        let pointer = self.resolve(*typedef).filter(|found| found.kind == POINTER)?;
        let prototype = self.resolve(pointer.size_or_type).filter(|found| found.kind == PROTOTYPE)?;
        // The first parameter is the tracepoint's own data.
        let parameters = (1..prototype.length).map(|index| {
            let place = prototype.rest.checked_add(index.checked_mul(8)?)?;
            Some(self.resolve(word(self.types, place.checked_add(4)?)?)?.kind == POINTER)
        });
        parameters.collect()
    }

    /// Offset in bits and type of a member.
    fn member_of(&self, id: u32, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        let structure = self.get(id).filter(|found| matches!(found.kind, STRUCT | UNION))?;
        for index in 0..structure.length {
            let place = structure.rest.checked_add(index.checked_mul(12)?)?;
            let (its_name, kind) =
                (self.string(word(self.types, place)?), word(self.types, place.checked_add(4)?)?);
            let packed = word(self.types, place.checked_add(8)?)?;
            let bits = if structure.bit_fields { packed & 0x00ff_ffff } else { packed };
            if its_name == name {
                return Some((bits, kind));
            }
            if its_name.is_empty() && depth > 0 {
                let inner = self.alias(kind).and_then(|id| self.member_of(id, name, depth.saturating_sub(1)));
                if let Some((within, kind)) = inner {
                    return Some((bits.checked_add(within)?, kind));
                }
            }
        }
        None
    }

    fn resolve(&self, id: u32) -> Option<Type> {
        self.get(self.alias(id)?)
    }

    /// The type behind names and modifiers.
    fn alias(&self, mut id: u32) -> Option<u32> {
        for _ in 0..MAX_ALIASES {
            let found = self.get(id)?;
            match found.kind {
                TYPEDEF | VOLATILE..=RESTRICT | TYPE_TAG => id = found.size_or_type,
                _ => return Some(id),
            }
        }
        None
    }

    fn get(&self, id: u32) -> Option<Type> {
        let index = usize::try_from(id.checked_sub(1)?).ok()?;
        self.type_at(*self.places.get(index)?)
    }

    fn type_at(&self, place: usize) -> Option<Type> {
        let info = word(self.types, place.checked_add(4)?)?;
        Some(Type {
            name: word(self.types, place)?,
            kind: (info >> 24) & 0x1f,
            length: usize::try_from(info & 0xffff).ok()?,
            bit_fields: info >> 31 == 1,
            size_or_type: word(self.types, place.checked_add(8)?)?,
            rest: place.checked_add(TYPE_BYTES)?,
        })
    }

    /// The name at `offset`; empty when there is none.
    fn string(&self, offset: u32) -> &'a [u8] {
        let tail = usize::try_from(offset).ok().and_then(|offset| self.strings.get(offset..));
        tail.and_then(|tail| tail.split(|byte| *byte == 0).next()).unwrap_or_default()
    }
}

/// Bytes that follow a type of this kind.
fn follows(kind: u32, length: usize) -> Option<usize> {
    let each = match kind {
        INT | VARIABLE | DECLARATION_TAG => return Some(4),
        ARRAY => return Some(12),
        POINTER | FORWARD | TYPEDEF | VOLATILE..=RESTRICT | FUNCTION | FLOAT | TYPE_TAG => return Some(0),
        STRUCT | UNION | SECTION | ENUM64 => 12,
        ENUM | PROTOTYPE => 8,
        _ => return None,
    };
    length.checked_mul(each)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn part(bytes: &[u8], start: u32, offset: u32, length: u32) -> Option<&[u8]> {
    let from = usize::try_from(start.checked_add(offset)?).ok()?;
    bytes.get(from..from.checked_add(usize::try_from(length).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types written by hand from the format's description.
    struct Writer {
        types: Vec<u32>,
        strings: Vec<u8>,
    }

    impl Writer {
        fn new() -> Self {
            Self { types: vec![], strings: vec![0] }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = u32::try_from(self.strings.len()).unwrap();
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn add(&mut self, name: &str, kind: u32, length: u32, size_or_type: u32, rest: &[u32]) {
            let name = self.name(name);
            self.types.extend([name, kind << 24 | length, size_or_type]);
            self.types.extend(rest);
        }

        fn bytes(&self) -> Vec<u8> {
            let types = u32::try_from(self.types.len() * 4).unwrap();
            let strings = u32::try_from(self.strings.len()).unwrap();
            let header = [24, 0, types, types, strings];
            let mut bytes = [MAGIC.to_ne_bytes(), [1, 0]].concat();
            bytes.extend(header.iter().chain(&self.types).flat_map(|word| word.to_ne_bytes()));
            bytes.extend(&self.strings);
            bytes
        }
    }

    /// `struct inner { int a; union { int b; long c; }; }` (1: int, 2: the union, 3: inner) and
    /// `btf_trace_event = void (*)(void *, struct inner *, int)`.
    fn sample() -> Vec<u8> {
        let mut writer = Writer::new();
        writer.add("int", INT, 0, 4, &[32]);
        let (a, b, c) = (writer.name("a"), writer.name("b"), writer.name("c"));
        writer.add("", UNION, 2, 8, &[b, 1, 0, c, 1, 0]);
        writer.add("inner", STRUCT, 2, 16, &[a, 1, 0, 0, 2, 64]);
        writer.add("", POINTER, 0, 0, &[]);
        writer.add("", POINTER, 0, 3, &[]);
        writer.add("", PROTOTYPE, 3, 0, &[0, 4, 0, 5, 0, 1]);
        writer.add("", POINTER, 0, 6, &[]);
        writer.add("btf_trace_event", TYPEDEF, 0, 7, &[]);
        writer.bytes()
    }

    #[test]
    fn members_are_found_in_nameless_parts_too() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("inner", "a"), Some(0));
        assert_eq!(btf.offset("inner", "b"), Some(8));
        assert_eq!(btf.offset("inner", "c"), Some(8));
        assert_eq!((btf.offset("inner", "d"), btf.offset("outer", "a")), (None, None));
    }

    #[test]
    fn a_tracepoint_tells_which_arguments_are_pointers() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.tracepoint("event"), Some(vec![true, false]));
        assert_eq!(btf.tracepoint("other"), None);
    }

    #[test]
    fn what_is_cut_off_or_of_a_later_version_is_an_error() {
        let bytes = sample();
        assert_eq!(Btf::parse(&[]).unwrap_err(), BtfError::Magic);
        assert_eq!(Btf::parse(&bytes[..bytes.len() - 1]).unwrap_err(), BtfError::CutOff("the names"));
        let mut writer = Writer::new();
        writer.add("new", 25, 0, 0, &[]);
        assert_eq!(Btf::parse(&writer.bytes()).unwrap_err(), BtfError::Kind { id: 1, kind: 25 });
    }

    #[test]
    fn a_type_that_refers_to_itself_ends() {
        let mut writer = Writer::new();
        writer.add("btf_trace_loop", TYPEDEF, 0, 1, &[]);
        writer.add("inner", STRUCT, 1, 8, &[0, 2, 0]);
        let bytes = writer.bytes();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.tracepoint("loop"), None);
        assert_eq!(btf.offset("inner", "a"), None);
    }
}
