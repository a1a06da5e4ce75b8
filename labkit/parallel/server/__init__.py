"""The parameter server (Li et al. 2014): some ranks hold the weights, the others compute gradients.

    if group.rank in servers:
        log = Server(named, group, servers, policy=SSP(3), optimizer=partial(torch.optim.SGD, lr=0.1)).serve()
    else:
        with Client(named, group, servers) as client:
            for x, y in batches:
                client.load(module)            # pull
                loss(module(x), y).backward()
                client.step(module)            # push, and the end of this clock

shards.py    which rows of which parameter lie on which server, and what a request says
client.py    `Client`: pull and push
server.py    `Server`: the loop that answers, and what it does when a worker is gone
inbox.py     whose request is next
update.py    how gradients become an update
log.py       what was applied: staleness, leads, and what stands in the log twice
"""

from labkit.parallel.server.client import Client
from labkit.parallel.server.log import Update, Wait, largest_lead, out_of_order, staleness
from labkit.parallel.server.server import Server

__all__ = ["Client", "Server", "Update", "Wait", "largest_lead", "out_of_order", "staleness"]
