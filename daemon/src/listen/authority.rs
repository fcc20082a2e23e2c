//! Makes every `:authority` acceptable. The HTTP/2 library refuses a value that is no host name, and gRPC libraries send the
//! path of a Unix socket there, plain or percent-encoded. No call depends on the value, so each of its bytes is replaced by
//! an `X` before the library reads it. The length stays, and with it every other byte of the connection. A value whose name
//! is an index of HPACK's dynamic table is not found; no known client sends that.
//!
//! Frames are those of RFC 9113, section 4; fields are encoded as RFC 7541 (HPACK), section 6.

/// What a client sends first (RFC 9113, 3.4).
const PREFACE_BYTES: u32 = 24;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: u32 = 1;
const NAME: &[u8] = b":authority";
/// The same in HPACK's Huffman code.
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// `X`, whose Huffman code is one whole byte.
const REPLACED: u8 = b'X';
const CODED_REPLACED: u8 = 0xfc;

/// Follows what one client sends.
#[derive(Debug)]
pub(super) struct Authorities {
    part: Part,
    fields: Fields,
}

/// What the next bytes are.
#[derive(Debug)]
enum Part {
    /// Of no interest: the preface, other frames, padding.
    Skipped { left: u32 },
    /// The header of a frame.
    FrameHeader { bytes: [u8; 9], filled: usize },
    /// What stands before the fields in a HEADERS frame: the length of the padding where there is some, and a priority.
    Prefix { left: u32, padded: bool, padding: u32, fields: u32 },
    /// Encoded fields, and behind them padding.
    Fields { left: u32, padding: u32 },
}

impl Default for Authorities {
    fn default() -> Self {
        Self { part: Part::Skipped { left: PREFACE_BYTES }, fields: Fields::default() }
    }
}

impl Authorities {
    /// Replaces in `bytes`, the next that came, what is part of an authority.
    pub(super) fn replace(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let used = match &mut self.part {
                Part::Skipped { left } => take(left, bytes.len()),
                Part::Fields { left, .. } => {
                    let used = take(left, bytes.len());
                    bytes.iter_mut().take(used).for_each(|byte| self.fields.replace(byte));
                    used
                }
                Part::FrameHeader { bytes: header, filled } => {
                    let places = header.iter_mut().skip(*filled);
                    let used = places.zip(&*bytes).map(|(place, byte)| *place = *byte).count();
                    *filled += used;
                    used
                }
                Part::Prefix { left, padded, padding, fields } => {
                    if std::mem::take(padded) {
                        *padding = bytes.first().copied().unwrap_or_default().into();
                        *fields = fields.saturating_sub(*padding);
                    }
                    *left = left.saturating_sub(1);
                    1
                }
            };
            bytes = bytes.get_mut(used..).unwrap_or_default();
            while let Some(next) = self.next() {
                self.part = next;
            }
        }
    }

    /// The part that follows where this one is complete; an empty part is complete at once.
    fn next(&mut self) -> Option<Part> {
        match self.part {
            Part::Skipped { left: 0 } | Part::Fields { left: 0, padding: 0 } => {
                Some(Part::FrameHeader { bytes: [0; 9], filled: 0 })
            }
            Part::Fields { left: 0, padding } => Some(Part::Skipped { left: padding }),
            Part::Prefix { left: 0, padding, fields, .. } => Some(Part::Fields { left: fields, padding }),
            Part::FrameHeader { bytes: [a, b, c, kind, flags, ..], filled: 9 } => {
                Some(self.frame(u32::from_be_bytes([0, a, b, c]), kind, flags))
            }
            _ => None,
        }
    }

    fn frame(&mut self, length: u32, kind: u8, flags: u8) -> Part {
        match kind {
            HEADERS => {
                self.fields = Fields::default();
                let padded = flags & PADDED != 0;
                let left = u32::from(padded) + if flags & PRIORITY == 0 { 0 } else { 5 };
                Part::Prefix { left, padded, padding: 0, fields: length.saturating_sub(left) }
            }
            CONTINUATION => Part::Fields { left: length, padding: 0 },
            _ => Part::Skipped { left: length },
        }
    }
}

/// Takes as many of `available` bytes as are `left`.
fn take(left: &mut u32, available: usize) -> usize {
    let used = u32::try_from(available).unwrap_or(u32::MAX).min(*left);
    *left -= used;
    usize::try_from(used).unwrap_or(available)
}

/// Follows the encoded fields of one header block.
#[derive(Debug, Default)]
struct Fields {
    at: At,
    /// The integer that is being read.
    integer: Integer,
    /// The field has a value of its own behind its index.
    literal: bool,
    /// The string is in the Huffman code.
    coded: bool,
    /// Bytes of the string that are still to come.
    left: u32,
    /// The field's name is `:authority`, as far as it was read.
    authority: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Index,
    NameLength,
    Name,
    ValueLength,
    Value,
}

impl Fields {
    fn replace(&mut self, byte: &mut u8) {
        match self.at {
            At::Index => self.index(*byte),
            At::NameLength => {
                if self.length(*byte) {
                    self.authority = usize::try_from(self.left) == Ok(self.name().len());
                    self.at = if self.left == 0 { At::ValueLength } else { At::Name };
                }
            }
            At::Name => {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let expected = self.name().len().checked_sub(left).and_then(|place| self.name().get(place));
                self.authority &= expected == Some(byte);
                self.left -= 1;
                self.at = if self.left == 0 { At::ValueLength } else { At::Name };
            }
            At::ValueLength => {
                if self.length(*byte) {
                    self.at = if self.left == 0 { At::Index } else { At::Value };
                }
            }
            At::Value => {
                if self.authority {
                    *byte = if self.coded { CODED_REPLACED } else { REPLACED };
                }
                self.left -= 1;
                self.at = if self.left == 0 { At::Index } else { At::Value };
            }
        }
    }

    /// A field begins: an index alone, a new size of the table, or an index (0: a name follows) with a value.
    fn index(&mut self, byte: u8) {
        let prefix_bits = match byte {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        if self.integer.is_new() {
            self.literal = matches!(prefix_bits, 6 | 4);
        }
        let Some(index) = self.integer.read(byte, prefix_bits) else { return };
        if self.literal {
            self.authority = index == AUTHORITY_INDEX;
            self.at = if index == 0 { At::NameLength } else { At::ValueLength };
        }
    }

    /// A string begins; true when its length is known.
    fn length(&mut self, byte: u8) -> bool {
        if self.integer.is_new() {
            self.coded = byte & 0x80 != 0;
        }
        let length = self.integer.read(byte, 7);
        self.left = length.unwrap_or_default();
        length.is_some()
    }

    const fn name(&self) -> &'static [u8] {
        if self.coded { CODED_NAME } else { NAME }
    }
}

/// An integer of HPACK (RFC 7541, 5.1).
#[derive(Debug, Default)]
struct Integer {
    value: u32,
    /// Bytes read; 0: it is new.
    bytes: u32,
}

impl Integer {
    const fn is_new(&self) -> bool {
        self.bytes == 0
    }

    /// Its value, when `byte` was its last. Beyond 32 bits it is whatever it is: the library refuses it.
    fn read(&mut self, byte: u8, prefix_bits: u32) -> Option<u32> {
        let complete = if self.is_new() {
            let most = (1 << prefix_bits) - 1;
            self.value = u32::from(byte) & most;
            self.value < most
        } else {
            let part = u32::from(byte & 0x7f).checked_shl(7 * (self.bytes - 1)).unwrap_or_default();
            self.value = self.value.saturating_add(part);
            byte & 0x80 == 0
        };
        if complete {
            return Some(std::mem::take(self).value);
        }
        self.bytes = self.bytes.saturating_add(1).min(5);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn string(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    /// A literal field with its name spelled out, as gRPC's C library sends it.
    fn named(name: &[u8], value: &[u8]) -> Vec<u8> {
        [vec![0x40], string(name), string(value)].concat()
    }

    /// What `frames` become behind the preface, read in pieces of `piece` bytes.
    fn replaced(frames: &[u8], piece: usize) -> Vec<u8> {
        let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frames].concat();
        let mut authorities = Authorities::default();
        bytes.chunks_mut(piece).for_each(|piece| authorities.replace(piece));
        bytes.split_off(24)
    }

    fn in_any_pieces(frames: &[u8], expected: &[u8]) {
        for piece in 1..=frames.len() + 24 {
            assert_eq!(replaced(frames, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn the_path_in_a_spelled_out_authority_is_replaced_and_nothing_else() {
        let fields = |authority: &[u8]| {
            [
                named(b":path", b":authority"),
                named(b":authority", authority),
                vec![0x83, 0x86],
                named(b"user-agent", &[b'u'; 120]),
            ]
            .concat()
        };
        let (body, settings) = (frame(0, 1, &named(b":authority", b"a/b")), frame(4, 0, &[0; 6]));
        let call =
            |authority| [settings.clone(), frame(HEADERS, 4, &fields(authority)), body.clone()].concat();
        in_any_pieces(&call(b"run%2Fg.sock"), &call(b"XXXXXXXXXXXX"));
    }

    #[test]
    fn an_authority_by_index_is_replaced_in_either_code_and_with_or_without_indexing() {
        for first in [0x41, 0x01, 0x11] {
            let field = |value: &[u8]| [&[first], value].concat();
            let plain = |value: &[u8]| frame(HEADERS, 4, &field(&string(value)));
            in_any_pieces(&plain(b"/a/b"), &plain(b"XXXX"));
            // "/a/b" in the Huffman code: 011000 00011 011000 100011, filled up with ones.
            let coded = |value: &[u8]| frame(HEADERS, 4, &field(&[&[0x83], value].concat()));
            in_any_pieces(&coded(&[0x60, 0x6c, 0x47]), &coded(&[0xfc; 3]));
        }
        let name = [&[0x40, 0x88], CODED_NAME].concat();
        let spelled = |value: &[u8]| frame(HEADERS, 4, &[name.clone(), string(value)].concat());
        in_any_pieces(&spelled(b"/a"), &spelled(b"XX"));
    }

    #[test]
    fn padding_priority_continuations_and_long_values_are_followed() {
        let long = |byte: u8| {
            // 127 + (0x49 & 0x7f) + (0x01 << 7): 328 bytes.
            [vec![0x41, 0x7f, 0xc9, 0x01], vec![byte; 328], vec![0x20, 0x83, 0xff, 0x02]].concat()
        };
        let call = |byte| {
            let fields = long(byte);
            let (first, second) = fields.split_at(100);
            let padded = [&[7][..], &[0x41; 5], first, &[0x41; 7]].concat();
            [frame(HEADERS, PADDED | PRIORITY, &padded), frame(CONTINUATION, 4, second), frame(4, 0, &[])]
                .concat()
        };
        in_any_pieces(&call(b'/'), &call(b'X'));
    }

    #[test]
    fn bytes_that_are_no_http2_are_survived() {
        for byte in 0..=u8::MAX {
            replaced(&[byte; 4096], 1000);
            replaced(&frame(HEADERS, byte, &[byte; 4096]), 1000);
            replaced(&frame(HEADERS, 4, &[0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte, byte]), 3);
        }
    }
}
