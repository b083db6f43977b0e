"""What kinds of resources share: get, list and delete, and operations as answers to their changes."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from msgspec import Struct, structs

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handler, Handlers
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Services
from trainshed.api.resources.operations import done_at_once
from trainshed.core.requests import snake_case
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.tables import Named, Resources

N = TypeVar("N")
R = TypeVar("R", bound=Named)


def of_location(parent: str) -> dict[str, Any]:
    """Return the columns that all resources of a location share. Raises InvalidRequest, NotFound."""
    return structs.asdict(known_location(parent))


class Kind(Struct, Generic[N, R], frozen=True):
    """A kind of resource, as its service shows it."""

    #: The service's name, such as `DatasetService`, and its message's, such as `Dataset`.
    service: str
    noun: str
    #: Read the name of a resource.
    parse: Callable[[str], N]
    table: Callable[[Services], Resources[N, R]]
    view: Callable[[Services, R], Message]
    listing: Listing[R]
    #: Return the columns that all resources below a parent share.
    of_parent: Callable[[str], dict[str, Any]] = of_location
    #: The noun in the plural; None = with an s.
    plural: str | None = None

    async def get(self, call: Call, request: Any) -> Message:
        name = self.parse(request.name)
        return self.view(call.services, await self.table(call.services).get(name))

    async def list(self, call: Call, request: Any) -> Message:
        """List resources in the order of their table unless `order_by` says otherwise."""
        services = call.services
        records = await self.table(services).list(self.of_parent(request.parent))
        page, token = await self.listing.page_of(records, request, f"{request.parent} {self.noun}")
        views = [self.view(services, record) for record in page]
        return listed("List", self.plural or f"{self.noun}s", views, token)

    async def create(self, call: Call, record: R) -> Message:
        """Store a record, and return the operation that is done with that."""
        name, response = str(record.name), self.view(call.services, record)
        done = done_at_once(call.services, OperationKind.CREATE, name, response)
        await self.table(call.services).create(record, done)
        return operations.finished(done)

    async def change(
        self,
        call: Call,
        name: N,
        change: Callable[[R], R],
        kind: OperationKind,
        response: Callable[[R], Message],
    ) -> Message:
        """Change a resource, and return the operation that is done with that."""
        done: list[Operation] = []

        def operation(record: R) -> Operation:
            done.append(done_at_once(call.services, kind, str(name), response(record)))
            return done[-1]

        await self.table(call.services).change(name, change, operation)
        return operations.finished(done[-1])

    async def delete(self, call: Call, request: Any) -> Message:
        done = done_at_once(call.services, OperationKind.DELETE, request.name)
        await self.table(call.services).delete(self.parse(request.name), done)
        return operations.finished(done)

    def handlers(self, **methods: Handler) -> Handlers:
        """Return the handlers of get, list and delete, and of further methods of the service."""
        own = {
            f"Get{self.noun}": self.get,
            f"List{self.plural or f'{self.noun}s'}": self.list,
            f"Delete{self.noun}": self.delete,
        }
        return {f"{V1}.{self.service}.{name}": method for name, method in (own | methods).items()}


def listed(verb: str, plural: str, views: Iterable[Message], token: str = "") -> Message:
    """Return the answer of a method such as `ListDatasets`."""
    answer = message(f"{verb}{plural}Response", **{snake_case(plural): views})
    if token:
        answer.next_page_token = token
    return answer
