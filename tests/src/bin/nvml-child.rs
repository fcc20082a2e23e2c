//! The NVML child alone, so that its tests need no daemon.

fn main() -> anyhow::Result<()> {
    let options = gpuadmitd::source::nvml::child::ChildOptions::parse(std::env::args_os().skip(1))?;
    gpuadmitd::source::nvml::child::child_main(options)
}
