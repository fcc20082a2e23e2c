//! PCI addresses, which NVML, the kernel and the driver's log each write in their own way.

/// Domain, bus and device; a GPU's function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
}

/// `00000000:3B:00.0` (NVML), `0000:3b:00.0` (the kernel) or `0000:3b:00` (the driver's log).
#[must_use]
pub fn parse(text: &str) -> Option<Address> {
    let mut parts = text.split(':');
    let domain = u32::from_str_radix(parts.next()?, 16).ok()?;
    let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
    let device = u8::from_str_radix(parts.next()?.split('.').next()?, 16).ok()?;
    parts.next().is_none().then_some(Address { domain, bus, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_spellings_are_one_address() {
        let address = Some(Address { domain: 0, bus: 0x3b, device: 0 });
        for text in ["00000000:3B:00.0", "0000:3b:00.0", "0000:3b:00"] {
            assert_eq!(parse(text), address, "{text}");
        }
        for text in ["", "3b:00.0", "0000:3b:00:1", "0000:zz:00", "0000:13b:00"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
