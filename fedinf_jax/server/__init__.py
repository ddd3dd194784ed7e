"""A server by itself: clients come and go, and may send anything.

Pure of any network: whoever carries the messages hands in what was sent.
"""

from fedinf_jax.server import answers as answers
from fedinf_jax.server.ledger import Ledger as Ledger
from fedinf_jax.server.policy import leave_out_harmful as leave_out_harmful
from fedinf_jax.server.reply import Limits as Limits
from fedinf_jax.server.reply import Sent as Sent
from fedinf_jax.server.rounds import Server as Server
from fedinf_jax.server.rounds import server as server
from fedinf_jax.server.table import Table as Table
