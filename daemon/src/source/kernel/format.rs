//! Reads the `format` file of a tracepoint (Documentation/trace/events.rst). Takes any bytes.

/// Largest file read, bytes.
pub const MAX_BYTES: u64 = 64 << 10;

/// Offset in bytes of the field called `name`; `None`: the tracepoint has none.
///
/// A line is `field:unsigned short common_type; offset:0; size:2; signed:0;`; an array's name is followed by its
/// length in brackets.
#[must_use]
pub fn offset(format: &[u8], name: &str) -> Option<u32> {
    let format = std::str::from_utf8(format).ok()?;
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        let declared = parts.next()?.rsplit([' ', '*']).next()?;
        let field = declared.split('[').next()?;
        let offset = parts.find_map(|part| part.trim().strip_prefix("offset:"))?;
        (field == name).then(|| offset.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Linux 6.18.
    const SIGNAL_GENERATE: &str = include_str!("signal_generate.format");

    #[test]
    fn fields_of_a_real_tracepoint_are_where_it_says() {
        let offset = |name| offset(SIGNAL_GENERATE.as_bytes(), name);
        assert_eq!(
            [offset("common_pid"), offset("sig"), offset("comm"), offset("result")],
            [4, 8, 20, 44].map(Some)
        );
        assert_eq!(offset("tgid"), None);
    }

    #[test]
    fn text_without_a_length_has_its_name() {
        let line = b"\tfield:__data_loc char[] dev;\toffset:8;\tsize:4;\tsigned:0;\n";
        assert_eq!(offset(line, "dev"), Some(8));
    }
}
