//! `MESSAGE_ID` of each kind of event: 128 random bits (sd_journal_print(3)) that never change, for `journalctl
//! MESSAGE_ID=…` and for the texts in `systemd/gpuadmit.catalog`.

use gpuadmit_core::event::EventKind;

/// Entries were left out: by the bounds of [`super::limit`], or because the journal did not take them.
pub const LEFT_OUT: &str = "ab50c13bc2584d1ea2e0d1a55a2d3f43";

/// That of a kind, in 32 hexadecimal digits.
#[must_use]
pub const fn of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::EngineFound => "772e979b3a0248aa9bf401b62d339a6e",
        EventKind::EngineReady => "f73d5177d41b48cdbaf52e3aba95b0ab",
        EventKind::EngineDraining => "3efc04e1e0ce4871952676a4c3d6d8f2",
        EventKind::EngineStopped => "119d6d005914402aa90d1d2bb4b63e13",
        EventKind::EngineAsleep => "3cd44416ade94407b968e18d8c4be9c9",
        EventKind::EngineSuspect => "c5cbbbe112774d03be6a5c7d404095fd",
        EventKind::EngineStalled => "bc67f9933b1747429a599857ebb797dc",
        EventKind::EngineUnknown => "d5b223c67c5f4c66ac889e92863ee1e5",
        EventKind::EngineDown => "f55ec50096c448bc855268b17ad13ff0",
        EventKind::EngineRestarted => "5d6c0dc8b5a145eb850cfc06eabb8790",
        EventKind::DeviceLost => "267786dcd4ba4c2b8f0f2fea6c744a02",
        EventKind::NvmlHung => "3d320889683d4eaca3ad3594423fb9e7",
        EventKind::DeviceRecovered => "21b3c63aef2542008104b258249de9a8",
        EventKind::Xid => "a128c48ae81f4f3c91199432af869bc6",
        EventKind::XidNotice => "10830dc82b4043909ce2f5e65d4ae742",
        EventKind::EccUncorrected => "5428102961364f9ab780b916c0f104d1",
        EventKind::CoTenantGrowth => "1af7ec1313ea487d85de0485b233cc01",
        EventKind::CoTenantReceded => "7e4aa95bc11a402f8fcb8ab5fced8e49",
        EventKind::ScaleUp => "70c993582f334762a968900e6d380544",
        EventKind::ScaleUpOver => "51ece3d114734f2a8b501e8b6c4d1dd8",
        EventKind::DeviceMemoryLow => "e3369d98d25b4f98be8c86445c03adfd",
        EventKind::AllocationFailed => "a9e82d068a794ae1a10986f18003559d",
        EventKind::AllocationRefused => "d05a167ac15948d294e7addeb0d67a05",
        EventKind::KvFilling => "5d998a4f19f440efa30754bebb537e8c",
        EventKind::PreemptionOnset => "2bb9c2a188f34fd79efa09a85536275b",
        EventKind::MemoryPressure => "6a6bb4fca27b487ea539b07b0de13411",
        EventKind::CgroupNearLimit => "a81a2bdd23c4430faf6819b5a6d8e6f4",
        EventKind::SharedMemoryNearFull => "4309b64e6e784c23806a2d0cfd32a7a2",
        EventKind::OomScoreRaised => "f11b11017e9f4298b669910f9078ee14",
        EventKind::OomKill => "cf269c5fe54c41dbb60a11c9b0c7b531",
        EventKind::MetricsStuck => "cf7663f1ecba474188424fc2aca47e1d",
        EventKind::AlertOver => "6c074fa13be14de58fd89e3f3de175e0",
        EventKind::GuardSet => "b1d5162120ce428b8f792e1aa6ecce4b",
        EventKind::GuardLifted => "27b24def211e42d4b7eb0af0b905c84b",
        EventKind::SourceFailed => "e5a66012e8314852aa915c5397849c51",
        EventKind::SourceRecovered => "64a7b673c27a4bc4800f7621b068532a",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_is_128_bits_of_its_own() {
        let ids: BTreeSet<_> = EventKind::ALL.iter().map(|kind| of(*kind)).chain([LEFT_OUT]).collect();
        assert_eq!(ids.len(), EventKind::ALL.len() + 1);
        let hex = |id: &&str| id.len() == 32 && id.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        assert!(ids.iter().all(hex));
    }
}
