"""Software stacks: kernel lists with options, and what each call takes the host."""

from replay.model.work.stacks.bare import BARE as BARE
from replay.model.work.stacks.bare import HOSTLESS as HOSTLESS
from replay.model.work.stacks.bare import BareRows as BareRows
from replay.model.work.stacks.costs import CallCosts as CallCosts
from replay.model.work.stacks.costs import load_costs as load_costs
from replay.model.work.stacks.sizes import even_sizes as even_sizes
from replay.model.work.stacks.sizes import facts_of as facts_of
from replay.model.work.stacks.sizes import facts_of_place as facts_of_place
from replay.model.work.stacks.stack import PRACTICE as PRACTICE
from replay.model.work.stacks.stack import STACKS as STACKS
from replay.model.work.stacks.stack import ListOption as ListOption
from replay.model.work.stacks.stack import Stack as Stack
from replay.model.work.stacks.stack import is_bare as is_bare
from replay.model.work.stacks.stack import knows as knows
from replay.model.work.stacks.stack import pays_hosts as pays_hosts
from replay.model.work.stacks.stack import practice_name as practice_name
