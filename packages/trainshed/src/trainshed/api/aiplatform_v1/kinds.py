"""Methods that many kinds of resources share: get, list and delete. Changes respond with operations."""

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
from trainshed.api.resources.operations import finished_operation
from trainshed.core.requests import snake_case
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.tables import Named, Resources

N = TypeVar("N")
R = TypeVar("R", bound=Named)


def of_location(parent: str) -> dict[str, Any]:
    """Return the column values that select all resources in the location `parent`. Raises InvalidRequest and
    NotFound."""
    return structs.asdict(known_location(parent))


class Kind(Struct, Generic[N, R], frozen=True):
    """A kind of resource and its public methods."""

    #: Name of the public service, such as `DatasetService`.
    service: str
    #: Name of the resource's message, such as `Dataset`.
    noun: str
    #: Parses a resource name.
    parse: Callable[[str], N]
    table: Callable[[Services], Resources[N, R]]
    view: Callable[[Services, R], Message]
    listing: Listing[R]
    #: Returns the column values that select all resources below a parent resource.
    of_parent: Callable[[str], dict[str, Any]] = of_location
    #: The plural of `noun`; None = `noun` with an s.
    plural: str | None = None

    async def get(self, call: Call, request: Any) -> Message:
        name = self.parse(request.name)
        return self.view(call.services, await self.table(call.services).get(name))

    async def list(self, call: Call, request: Any) -> Message:
        """List resources in the order of `order_by`. Default: the order of their table."""
        services = call.services
        records = await self.table(services).list(self.of_parent(request.parent))
        page, token = await self.listing.page_of(records, request, f"{request.parent} {self.noun}")
        views = [self.view(services, record) for record in page]
        return list_response("List", self.plural or f"{self.noun}s", views, token)

    async def create(self, call: Call, record: R) -> Message:
        """Store a record, and return a finished operation."""
        name, response = str(record.name), self.view(call.services, record)
        done = finished_operation(call.services, OperationKind.CREATE, name, response)
        await self.table(call.services).create(record, done)
        return operations.finished_view(done)

    async def change(
        self,
        call: Call,
        name: N,
        change: Callable[[R], R],
        kind: OperationKind,
        response: Callable[[R], Message],
    ) -> Message:
        """Replace a resource by the result of `change`, and return a finished operation. `kind`: the kind of
        the operation. `response`: returns the operation's response for the new resource."""
        done: list[Operation] = []

        def operation(record: R) -> Operation:
            done.append(finished_operation(call.services, kind, str(name), response(record)))
            return done[-1]

        await self.table(call.services).change(name, change, operation)
        return operations.finished_view(done[-1])

    async def delete(self, call: Call, request: Any) -> Message:
        done = finished_operation(call.services, OperationKind.DELETE, request.name)
        await self.table(call.services).delete(self.parse(request.name), done)
        return operations.finished_view(done)

    def handlers(self, **methods: Handler) -> Handlers:
        """Return the handlers of get, list and delete, and the handlers in `methods`."""
        common_methods = {
            f"Get{self.noun}": self.get,
            f"List{self.plural or f'{self.noun}s'}": self.list,
            f"Delete{self.noun}": self.delete,
        }
        return {f"{V1}.{self.service}.{name}": method for name, method in (common_methods | methods).items()}


def list_response(verb: str, plural: str, views: Iterable[Message], token: str = "") -> Message:
    """Return the response of a list method, such as `ListDatasetsResponse`. `views`: the messages on the
    page. `token`: the token of the next page; "" = no next page."""
    answer = message(f"{verb}{plural}Response", **{snake_case(plural): views})
    if token:
        answer.next_page_token = token
    return answer
