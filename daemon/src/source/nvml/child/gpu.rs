//! A GPU and its MIG instances.

use nvml_wrapper::{Device, Nvml, error::NvmlError};

use super::{super::wire::Identity, calls};

/// Most instances of one GPU; today's have at most 7.
const MAX_INSTANCES: u32 = 16;

/// A GPU and the instances that it is split into.
pub(super) struct Gpu {
    pub(super) whole: Part,
    instances: Vec<Part>,
}

/// A GPU or an instance.
pub(super) struct Part {
    pub(super) device: Device<'static>,
    pub(super) identity: Identity,
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) parent: Option<String>,
    pub(super) instance: Option<(u32, u32)>,
    pub(super) form: MemoryForm,
    pub(super) utilisation_percent: Option<u32>,
}

/// Which memory call a device is known to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MemoryForm {
    /// `nvmlDeviceGetMemoryInfo_v2`, as far as known.
    #[default]
    V2,
    /// `nvmlDeviceGetMemoryInfo` only.
    V1,
}

impl Gpu {
    /// Opens the GPU at a position of NVML's order; a second handle is for its events.
    pub(super) fn open(nvml: &'static Nvml, index: u32) -> Result<(Self, Device<'static>), NvmlError> {
        let device = nvml.device_by_index(index)?;
        let identity = Identity { pci: device.pci_info()?.bus_id, uuid: Some(device.uuid()?) };
        let name = device.name()?;
        let whole = Part {
            device,
            identity,
            name,
            index,
            parent: None,
            instance: None,
            form: MemoryForm::V2,
            utilisation_percent: None,
        };
        Ok((Self { whole, instances: Vec::new() }, nvml.device_by_index(index)?))
    }

    /// Finds the instances anew: an operator may have changed them. A GPU that cannot be split has none.
    pub(super) fn find_instances(&mut self, nvml: &Nvml) -> Result<(), NvmlError> {
        let most = match self.whole.device.mig_device_count() {
            Ok(most) => most.min(MAX_INSTANCES),
            Err(error @ (NvmlError::GpuLost | NvmlError::Uninitialized)) => return Err(error),
            Err(_) => 0,
        };
        self.instances = (0..most).filter_map(|index| self.instance(nvml, index).ok()).collect();
        Ok(())
    }

    /// The GPU, then its instances.
    pub(super) fn parts(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.whole).chain(&mut self.instances)
    }

    fn instance(&self, nvml: &Nvml, index: u32) -> Result<Part, NvmlError> {
        let device = self.whole.device.mig_device_by_index(index)?;
        let instance = calls::instance_ids(nvml, &device).ok();
        let uuid = device.uuid()?;
        let name = device.name().unwrap_or_else(|_| self.whole.name.clone());
        Ok(Part {
            device,
            identity: Identity { pci: self.whole.identity.pci.clone(), uuid: Some(uuid) },
            name,
            index,
            parent: self.whole.identity.uuid.clone(),
            instance,
            form: self.whole.form,
            utilisation_percent: None,
        })
    }
}
