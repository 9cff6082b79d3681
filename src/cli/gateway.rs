//! The HTTP gateway beside the server, if this build has it and it is wanted.

#[cfg(feature = "http")]
pub use with::{Gateway, GatewayPlan, SetLogFilter};
#[cfg(not(feature = "http"))]
pub use without::{Gateway, GatewayPlan, SetLogFilter};

#[cfg(feature = "http")]
mod with {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use anyhow::{Context as _, Result, anyhow};
    use fanlog::access::Access;
    use fanlog::engine::{Engine, RecoveryReport};
    use fanlog::http::{CountConnections, EncryptionKey, HttpOptions, serve};
    use fanlog::tls::TlsServer;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    pub use fanlog::http::SetLogFilter;

    use crate::cli::config::Config;

    /// Checked settings of the gateway.
    #[derive(Clone)]
    pub struct GatewayPlan {
        /// Where to listen; `None` is nowhere.
        pub address: Option<SocketAddr>,
        options: HttpOptions,
    }

    /// A gateway that listens, or none.
    pub struct Gateway {
        listening: Option<(TcpListener, SocketAddr)>,
        engine: Engine,
        options: HttpOptions,
    }

    impl GatewayPlan {
        /// Takes the settings apart.
        pub fn of(config: &Config, access: Arc<Access>, tls: Option<Arc<TlsServer>>) -> Result<Self> {
            let address = match config.text("http") {
                "off" => None,
                _ => Some(config.get("http")?),
            };
            let refused = |reason: String| anyhow!(reason).context(config.refused("encryption_key"));
            let encryption_key = match config.optional("encryption_key") {
                Some(key) => Some(EncryptionKey::parse(key).map_err(refused)?),
                None => EncryptionKey::from_environment().map_err(refused)?,
            };
            let options = HttpOptions {
                access,
                tls,
                encryption_key,
                connections_max: config.get("connections_max")?,
                connections_per_address_max: config.get("connections_per_address_max")?,
                is_insecure_bind_allowed: config.get("insecure_bind")?,
                waiting_pops_max: config.get("waiting_max")?,
                answer_bytes_total_max: config.get("out_bytes_max")?,
                drain: config.duration("drain_timeout")?,
                ..HttpOptions::default()
            };
            Ok(Self { address, options })
        }

        /// Takes no more connections than these.
        pub fn bound_connections(&mut self, connections_max: usize, per_address_max: usize) {
            self.options.connections_max = connections_max;
            self.options.connections_per_address_max = per_address_max;
        }
    }

    impl Gateway {
        /// Listens, if there is an address.
        pub async fn bind(
            plan: GatewayPlan,
            engine: &Engine,
            recovery: &RecoveryReport,
            set_log_filter: SetLogFilter,
            count_connections: impl Fn() -> usize + Send + Sync + 'static,
        ) -> Result<Self> {
            let count_connections: CountConnections = Arc::new(count_connections);
            let listening = match plan.address {
                None => None,
                Some(address) => {
                    let listener = TcpListener::bind(address).await;
                    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
                    let address = listener.local_addr()?;
                    Some((listener, address))
                }
            };
            let options = HttpOptions {
                recovery: Arc::new(recovery.clone()),
                set_log_filter: Some(set_log_filter),
                count_connections: Some(count_connections),
                ..plan.options
            };
            Ok(Self { listening, engine: engine.clone(), options })
        }

        /// Where it listens.
        pub fn local_addr(&self) -> Option<SocketAddr> {
            self.listening.as_ref().map(|(_, address)| *address)
        }

        /// Serves until `stopping`, then lets requests finish.
        pub async fn serve(self, stopping: CancellationToken) {
            if let Some((listener, _)) = self.listening {
                serve(listener, self.engine, self.options, stopping.cancelled_owned()).await;
            }
        }
    }
}

#[cfg(not(feature = "http"))]
mod without {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use anyhow::Result;
    use fanlog::access::Access;
    use fanlog::engine::{Engine, RecoveryReport};
    use fanlog::tls::TlsServer;
    use tokio_util::sync::CancellationToken;

    use crate::cli::config::Config;

    /// Sets what is logged; says why it cannot.
    pub type SetLogFilter = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

    /// What was asked for.
    #[derive(Clone)]
    pub struct GatewayPlan {
        /// Where it would listen.
        pub address: Option<SocketAddr>,
    }

    /// No gateway.
    pub struct Gateway;

    impl GatewayPlan {
        /// Takes the settings apart.
        pub fn of(config: &Config, _access: Arc<Access>, _tls: Option<Arc<TlsServer>>) -> Result<Self> {
            let address = match config.text("http") {
                "off" => None,
                _ => Some(config.get("http")?),
            };
            Ok(Self { address })
        }

        /// Takes none.
        pub fn bound_connections(&mut self, _connections_max: usize, _per_address_max: usize) {}
    }

    impl Gateway {
        /// Says that there is none.
        pub async fn bind(
            plan: GatewayPlan,
            _engine: &Engine,
            _recovery: &RecoveryReport,
            _set_log_filter: SetLogFilter,
            _count_connections: impl Fn() -> usize + Send + Sync + 'static,
        ) -> Result<Self> {
            if let Some(address) = plan.address {
                tracing::warn!(%address, "this build has no HTTP gateway; the address is not used");
            }
            Ok(Self)
        }

        /// Nowhere.
        pub fn local_addr(&self) -> Option<SocketAddr> {
            None
        }

        /// Nothing.
        pub async fn serve(self, _stopping: CancellationToken) {}
    }
}
