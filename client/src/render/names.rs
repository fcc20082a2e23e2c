//! Short names of devices, and what an event says beside its subject.

use std::collections::BTreeMap;

use gpuadmit_client::v1::{Device, Event};

use super::text::{fitted, safe};

/// Columns of a device's UUID where its index is unknown.
const UUID_COLUMNS: usize = 16;

/// Names of devices by UUID: `GPU 0`, `GPU 0 MIG 2`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

/// What an event is about, and what it says about that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    /// Device, engine, both, or nothing.
    pub(crate) subject: String,
    /// The message without the subject in front.
    pub(crate) message: String,
}

impl Names {
    /// The names of `devices`.
    pub(crate) fn of(devices: &[Device]) -> Self {
        let name = |device: &Device| {
            let parent = device.parent.as_deref();
            let Some(parent) = parent else { return format!("GPU {}", device.index) };
            match devices.iter().find(|one| one.uuid == parent) {
                Some(gpu) => format!("GPU {} MIG {}", gpu.index, device.index),
                None => format!("MIG {}", device.index),
            }
        };
        Self(devices.iter().map(|device| (device.uuid.clone(), name(device))).collect())
    }

    /// The name of the device `uuid`; its UUID, cut, where it has none.
    pub(crate) fn device(&self, uuid: &str) -> String {
        self.0.get(uuid).cloned().unwrap_or_else(|| fitted(uuid, UUID_COLUMNS))
    }

    /// The index of the device `uuid` in a table, as `0`, or `0/2` of a MIG instance.
    pub(crate) fn index(&self, uuid: &str) -> String {
        let name = self.device(uuid);
        name.trim_start_matches("GPU ").replace(" MIG ", "/").replace("MIG ", "?/")
    }

    /// `text`, safe, with the names of its devices for their UUIDs.
    pub(crate) fn name_in(&self, text: &str) -> String {
        self.0.iter().fold(safe(text), |text, (uuid, name)| named(&text, uuid, name))
    }

    /// What `event` says. A message repeats its subject, because it stands alone in a journal.
    pub(crate) fn news(&self, event: &Event) -> News {
        let device = event.device.as_deref().map(|uuid| self.device(uuid));
        let mut message = self.name_in(&event.message);
        if let (Some(uuid), Some(name)) = (event.device.as_deref(), device.as_deref()) {
            message = named(&message, uuid, name);
        }
        let engine = event.engine.as_deref().map(safe);
        let fronts =
            [device.clone(), engine.clone().map(|engine| format!("engine {engine}")), engine.clone()];
        for front in fronts.into_iter().flatten() {
            let rest = message
                .strip_prefix(&front)
                .and_then(|rest| rest.strip_prefix(": ").or(rest.strip_prefix(' ')));
            if let Some(rest) = rest {
                message = rest.to_owned();
            }
        }
        let subject = device.into_iter().chain(engine).collect::<Vec<_>>().join(" ");
        News { subject, message }
    }
}

fn named(text: &str, uuid: &str, name: &str) -> String {
    if uuid.is_empty() {
        return text.to_owned();
    }
    text.replace(&format!("device {uuid}"), name).replace(uuid, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "GPU-51300000-1111-2222-3333-444455556666";
    const MIG: &str = "MIG-9a000000-1111-2222-3333-444455556666";

    fn names() -> Names {
        let gpu = Device { uuid: GPU.into(), index: 3, ..Device::default() };
        let mig = Device { uuid: MIG.into(), index: 1, parent: Some(GPU.into()), ..Device::default() };
        Names::of(&[gpu, mig])
    }

    #[track_caller]
    fn assert_news(engine: Option<&str>, device: Option<&str>, message: &str, subject: &str, said: &str) {
        let event = Event {
            engine: engine.map(Into::into),
            device: device.map(Into::into),
            message: message.into(),
            ..Event::default()
        };
        let expected = News { subject: subject.into(), message: said.into() };
        assert_eq!(names().news(&event), expected);
    }

    #[test]
    fn a_device_is_called_by_its_index_and_once() {
        let xid = "Xid 79: the GPU has fallen off the bus";
        assert_news(None, Some(GPU), &format!("device {GPU}: {xid}"), "GPU 3", xid);
        assert_news(None, Some(MIG), &format!("device {MIG}: {xid}"), "GPU 3 MIG 1", xid);
        let gone = format!("device {GPU} is gone from the driver");
        assert_news(None, Some(GPU), &gone, "GPU 3", "is gone from the driver");
        let unknown = "GPU-77777777-8888-9999-aaaa-bbbbccccdddd";
        assert_news(None, Some(unknown), &format!("device {unknown}: {xid}"), "GPU-77777777-88…", xid);
    }

    #[test]
    fn an_engine_is_named_once_and_its_device_by_index() {
        assert_news(Some("e"), None, "engine e: answers", "e", "answers");
        assert_news(Some("e"), None, "engine e was started again", "e", "was started again");
        assert_news(Some("e"), None, "engine extra: answers", "e", "engine extra: answers");
        let full = format!("other processes on device {GPU} hold 5.0 GiB more");
        assert_news(Some("e"), Some(GPU), &full, "GPU 3 e", "other processes on GPU 3 hold 5.0 GiB more");
        assert_news(None, None, "the clock was set", "", "the clock was set");
    }
}
