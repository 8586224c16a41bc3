//! Looking at a controller again and again, also while it restarts.

use super::ControllerArgs;
use crate::control::{Client, ClientError};

/// A connection to the controller that is made anew after an error.
#[derive(Debug)]
pub struct Follow {
    controller: ControllerArgs,
    client: Option<Client>,
}

impl Follow {
    /// # Errors
    /// As [`ControllerArgs::connect`]: who begins to follow wants to know at once.
    pub fn begin(controller: &ControllerArgs) -> Result<Self, ClientError> {
        Ok(Self {
            client: Some(controller.connect()?),
            controller: controller.clone(),
        })
    }

    /// Asks on the connection there is or, after an error, on a new one.
    ///
    /// # Errors
    /// What `ask` returns, or that there is no connection.
    pub fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.controller.connect()?,
        };
        let answer = ask(&mut client);
        // A refusal is an answer: the connection is good.
        if matches!(answer, Ok(_) | Err(ClientError::Refused(_))) {
            self.client = Some(client);
        }
        answer
    }
}
