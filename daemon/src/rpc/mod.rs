//! The gRPC server: `gpuadmit.v1` and the standard health and reflection services.

mod activity;
mod admission;
mod asking;
mod check;
mod convert;
mod deadline;
mod events;
mod gate;
mod meter;
mod node;
mod peer;
mod peer_groups;
mod prompt;
mod report;
mod session;
mod status;
mod told;
mod until;

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use gpuadmit_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{admission_server::AdmissionServer, node_server::NodeServer},
};
use http::{Request, Response};
use tokio::sync::watch;
use tonic::{Status, body::Body, server::NamedService, transport::Server};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tonic_reflection::server::{Builder, Error};
use tower::{Service as _, ServiceExt as _, util::BoxCloneSyncService};

pub(crate) use self::status::state_number;
use self::{admission::Admission, node::Node};
pub use self::{
    gate::Gate,
    peer::{Allowed, Peer},
};
use crate::{config::Limits, handle::Handle, listen::Incoming, tokens::Tokens};

/// Lets go of the driver for a time; true when the process that held it has ended.
pub type ReleaseGpu = Arc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// What the services need.
#[derive(Clone)]
pub struct Parts {
    /// The node.
    pub handle: Handle,
    /// Whether it is simulated.
    pub simulated: bool,
    /// How to let go of the driver; `None`: NVML is not in use.
    pub release_gpu: Option<ReleaseGpu>,
    /// Counts prompts.
    pub tokens: Tokens,
    /// Largest message, bytes.
    pub message_bytes: usize,
    /// Most calls of one session that wait for room.
    pub waits_per_session: usize,
    /// True once the daemon stops.
    pub stopping: watch::Receiver<bool>,
}

/// All services. Routing is a match on the path: nothing is looked up in a table, nothing allocated.
pub struct Services {
    admission: AdmissionServer<Admission>,
    node: NodeServer<Node>,
    health: HealthServer<HealthService>,
    health_reporter: HealthReporter,
    reflection: Boxed,
    reflection_alpha: Boxed,
}

type Boxed = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Longest time until a call begins to be answered, its request's arrival included: the longest `wait_ms`, and a minute.
const CALL_DEADLINE: Duration = Duration::from_secs(660);

const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";
const ADMISSION: &str = <AdmissionServer<Admission> as NamedService>::NAME;
const NODE: &str = <NodeServer<Node> as NamedService>::NAME;

impl Services {
    /// The services over `parts`.
    ///
    /// # Errors
    /// The descriptors compiled into the program are broken.
    pub fn new(parts: &Parts) -> Result<Self, Error> {
        let most = parts.message_bytes;
        let health_reporter = HealthReporter::new();
        let health = HealthService::from_health_reporter(health_reporter.clone());
        Ok(Self {
            admission: AdmissionServer::new(Admission::new(parts)).max_decoding_message_size(most),
            node: NodeServer::new(Node::new(parts)).max_decoding_message_size(most),
            health: HealthServer::new(health).max_decoding_message_size(most),
            health_reporter,
            reflection: BoxCloneSyncService::new(descriptors().build_v1()?),
            reflection_alpha: BoxCloneSyncService::new(descriptors().build_v1alpha()?),
        })
    }

    /// What health checks are told, of the server ("") and of each service.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", ADMISSION, NODE] {
            self.health_reporter.set_service_status(service, status).await;
        }
    }

    fn call(&self, request: Request<Body>) -> Answer {
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        match service.map(|(service, _method)| service) {
            Some(ADMISSION) => self.admission.clone().call(request),
            Some(NODE) => self.node.clone().call(request),
            Some(HEALTH) => self.health.clone().call(request),
            Some(REFLECTION) => Box::pin(self.reflection.clone().oneshot(request)),
            Some(REFLECTION_ALPHA) => Box::pin(self.reflection_alpha.clone().oneshot(request)),
            _ => Box::pin(async {
                Ok(Status::unimplemented(
                    "there is no service of this name; server reflection lists those there are",
                )
                .into_http())
            }),
        }
    }
}

/// Serves `incoming` until the daemon stops, then waits for its connections to end.
///
/// # Errors
/// The transport's.
pub async fn serve(
    incoming: Incoming,
    services: Arc<Services>,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let keepalive = Duration::from_millis(limits.keepalive_ms);
    let stopped = async move {
        // An error: the one who would tell is gone, which means the same.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    Server::builder()
        .timeout(CALL_DEADLINE)
        .max_concurrent_streams(limits.streams_per_connection)
        .http2_max_header_list_size(limits.header_bytes)
        .http2_keepalive_interval(Some(keepalive))
        .http2_keepalive_timeout(Some(keepalive))
        .serve_with_incoming_shutdown(Gate::new(services, &limits), incoming, stopped)
        .await
}

fn descriptors() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
