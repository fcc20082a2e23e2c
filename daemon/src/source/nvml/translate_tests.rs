use super::*;

const PCI: &str = "00000000:41:00.0";

fn device(uuid: Option<&str>) -> wire::Identity {
    wire::Identity { pci: PCI.to_owned(), uuid: uuid.map(str::to_owned) }
}

fn at(ns: u64) -> wire::Span {
    wire::Span { not_before_ns: ns, not_after_ns: ns + 5 }
}

fn reading(uuid: Option<&str>, parent: Option<&str>) -> wire::Message {
    wire::Message::Reading(wire::Reading {
        device: device(uuid),
        span: at(10),
        name: "NVIDIA H200".to_owned(),
        index: 3,
        parent: parent.map(str::to_owned),
        instance: None,
        memory: Some(wire::Memory { total_bytes: 100, reserved_bytes: None, used_bytes: 60, free_bytes: 40 }),
        utilisation_percent: None,
        problem: String::new(),
    })
}

fn lost() -> wire::Message {
    wire::Message::Event(wire::Event { device: device(None), span: at(20), what: wire::What::Lost })
}

fn health(busy_us: u64) -> wire::Message {
    let detail = "1 GPU".to_owned();
    wire::Message::Health(wire::Health { span: at(30), state: wire::State::Ok, detail, busy_us })
}

fn busy(translator: &mut Translator, busy_us: u64) -> Option<Duration> {
    match translator.observation(health(busy_us)) {
        Ok(Some(Observation::Source(report))) => report.busy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reading_keeps_its_figures_and_missing_stays_missing() {
    let Ok(Some(Observation::Device(seen))) = Translator::default().observation(reading(Some("GPU-a"), None))
    else {
        panic!("no device reading");
    };
    assert_eq!(&*seen.uuid, "GPU-a");
    assert_eq!((seen.index, seen.pci.as_str(), seen.name.as_str()), (3, PCI, "NVIDIA H200"));
    assert_eq!(seen.span, Span { not_before: Mono(10), not_after: Mono(15) });
    let memory = DeviceMemory { total: Bytes(100), reserved: None, used: Bytes(60), free: Bytes(40) };
    assert_eq!(seen.memory, Some(memory));
    assert_eq!(seen.utilisation_percent, None);
}

#[test]
fn a_lost_gpu_still_has_its_uuid() {
    let mut translator = Translator::default();
    assert_eq!(translator.observation(lost()), Err(Unusable::NeverSeen { pci: PCI.to_owned() }));
    translator.observation(reading(Some("GPU-a"), None)).unwrap();
    translator.observation(reading(Some("MIG-b"), Some("GPU-a"))).unwrap();
    match translator.observation(lost()) {
        Ok(Some(Observation::DeviceEvent { uuid, event, .. })) => {
            assert_eq!((&*uuid, event), ("GPU-a", DeviceEvent::Lost));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn time_inside_nvml_adds_up_over_children() {
    let mut translator = Translator::default();
    assert_eq!(busy(&mut translator, 700), Some(Duration::from_micros(700)));
    assert_eq!(busy(&mut translator, 900), Some(Duration::from_micros(900)));
    translator.child_ended();
    assert_eq!(busy(&mut translator, 50), Some(Duration::from_micros(950)));
}

#[test]
fn more_devices_than_a_node_can_have_are_refused() {
    let mut translator = Translator::default();
    for n in 0..MAX_DEVICES {
        translator.observation(reading(Some(&format!("GPU-{n}")), None)).unwrap();
    }
    assert_eq!(translator.observation(reading(Some("GPU-more"), None)), Err(Unusable::TooManyDevices));
    assert!(translator.observation(reading(Some("GPU-7"), None)).is_ok());
}

#[test]
fn names_and_spans_are_checked() {
    let mut translator = Translator::default();
    let long = "G".repeat(97);
    let refused = translator.observation(reading(Some(&long), None));
    assert_eq!(refused, Err(Unusable::Name { field: "uuid", bytes: 97 }));
    let backwards = wire::Span { not_before_ns: 9, not_after_ns: 8 };
    let event = wire::Event { device: device(Some("GPU-a")), span: backwards, what: wire::What::Hung };
    let refused = translator.observation(wire::Message::Event(event));
    assert_eq!(refused, Err(Unusable::Span { not_before_ns: 9, not_after_ns: 8 }));
}
