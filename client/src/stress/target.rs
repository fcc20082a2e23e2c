//! Which engine, and whether it may be loaded.

use gpuadmit_client::v1::{Engine, EngineState, StatusResponse};

use super::http::Address;

/// The engine.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its id.
    pub(crate) engine: String,
    /// A model that it serves.
    pub(crate) model: String,
    /// Where.
    pub(super) address: Address,
    /// As it is written.
    pub(crate) place: String,
    /// Context window, tokens.
    pub(crate) window: u64,
    /// For its `Authorization` header.
    pub(super) api_key: Option<String>,
}

impl Target {
    /// The engine called `wanted`, or the only one.
    ///
    /// # Errors
    /// There is none, it is not ready, or it is on another machine and `remote` is not allowed.
    pub(crate) fn find(
        status: &StatusResponse,
        wanted: Option<&str>,
        remote: bool,
        api_key: Option<String>,
    ) -> anyhow::Result<Self> {
        let engine = choose(&status.engines, wanted)?;
        if engine.state() != EngineState::Ready {
            anyhow::bail!("engine {} is not ready: {}; wait until it is", engine.id, engine.state_reason);
        }
        let address = Address::parse(&engine.address).ok_or_else(|| {
            anyhow::anyhow!(
                "engine {}: cannot load address {:?}; http://HOST:PORT or unix:/PATH",
                engine.id,
                engine.address
            )
        })?;
        if !remote && !address.is_local() {
            anyhow::bail!(
                "engine {} at {} is not on this machine; load it all the same with --remote",
                engine.id,
                engine.address
            );
        }
        let model = engine
            .models
            .first()
            .ok_or_else(|| anyhow::anyhow!("engine {} serves no model; see `gpuadmit status`", engine.id))?;
        let window = engine.max_model_len.filter(|window| *window > 0).ok_or_else(|| {
            anyhow::anyhow!("engine {}: its context window is unknown; see `gpuadmit status`", engine.id)
        })?;
        let (engine, model, place) = (engine.id.clone(), model.clone(), engine.address.clone());
        Ok(Self { engine, model, address, place, window, api_key })
    }
}

fn choose<'a>(engines: &'a [Engine], wanted: Option<&str>) -> anyhow::Result<&'a Engine> {
    let names = || engines.iter().map(|engine| format!("{:?}", engine.id)).collect::<Vec<_>>().join(", ");
    match (wanted, engines) {
        (_, []) => anyhow::bail!("the daemon sees no engine; start one, or see `gpuadmit doctor`"),
        (Some(id), _) => engines
            .iter()
            .find(|engine| engine.id == id)
            .ok_or_else(|| anyhow::anyhow!("engine: there is no {id:?}; one of {}", names())),
        (None, [only]) => Ok(only),
        (None, _) => anyhow::bail!("engine: missing; one of {}", names()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(addresses: &[&str]) -> StatusResponse {
        let engine = |(index, address): (usize, &&str)| Engine {
            id: format!("vllm-{index}"),
            address: (*address).into(),
            state: EngineState::Ready.into(),
            models: vec!["m".into()],
            max_model_len: Some(2_048),
            ..Engine::default()
        };
        StatusResponse {
            engines: addresses.iter().enumerate().map(engine).collect(),
            ..StatusResponse::default()
        }
    }

    fn refused(status: &StatusResponse, wanted: Option<&str>) -> String {
        Target::find(status, wanted, false, None).unwrap_err().to_string()
    }

    #[test]
    fn an_engine_elsewhere_is_loaded_only_when_told_so() {
        for address in
            ["http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost:8000", "unix:/run/v.sock"]
        {
            let target = Target::find(&status(&[address]), None, false, None).unwrap();
            assert_eq!(target.place, address);
        }
        for address in ["http://10.0.0.7:8000", "http://gpu-box:8000", "http://127.0.0.1.example:8000"] {
            let status = status(&[address]);
            assert!(refused(&status, None).contains("is not on this machine"), "{address}");
            assert!(Target::find(&status, None, true, None).is_ok());
        }
    }

    #[test]
    fn it_must_be_clear_which_engine_and_that_one_ready() {
        assert_eq!(
            refused(&status(&[]), None),
            "the daemon sees no engine; start one, or see `gpuadmit doctor`"
        );
        let mut two = status(&["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        assert_eq!(refused(&two, None), "engine: missing; one of \"vllm-0\", \"vllm-1\"");
        assert_eq!(refused(&two, Some("x")), "engine: there is no \"x\"; one of \"vllm-0\", \"vllm-1\"");
        assert_eq!(Target::find(&two, Some("vllm-1"), false, None).unwrap().engine, "vllm-1");
        two.engines[1].state = EngineState::Stalled.into();
        assert!(refused(&two, Some("vllm-1")).starts_with("engine vllm-1 is not ready"));
    }
}
