// A plan on ns-3: every directed link is a point-to-point device with a queue that marks, switches
// forward by (source, destination), and messages travel over TCP connections that stay open.
// A program that testbed/network/packet.py compiles: it reads what to simulate and prints when each
// transfer began and ended. Units are bytes, bit/s and seconds.

#include "ns3/arp-l3-protocol.h"
#include "ns3/boolean.h"
#include "ns3/config.h"
#include "ns3/data-rate.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/ipv4-routing-protocol.h"
#include "ns3/node.h"
#include "ns3/point-to-point-channel.h"
#include "ns3/point-to-point-net-device.h"
#include "ns3/ppp-header.h"
#include "ns3/queue.h"
#include "ns3/rtt-estimator.h"
#include "ns3/simulator.h"
#include "ns3/tcp-congestion-ops.h"
#include "ns3/tcp-dctcp.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-prr-recovery.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/tcp-tx-buffer.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/uinteger.h"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <sys/prctl.h>

namespace slowlink {

using namespace ns3;

const double BEGIN_S = 10;  // when the plan starts; connections open before
const uint16_t PORT = 5000;
const uint16_t IPV4 = 0x0800;
const int PPP_BYTES = 2;  // what the device itself puts before a packet
const int HEADER_BYTES = 52;  // IPv4, and TCP with timestamps
const uint32_t ACK_BYTES = PPP_BYTES + HEADER_BYTES;
const double REPORT_S = 5;  // wall seconds between lines of progress

struct Settings {
    uint32_t mtu, initial_window;
    double min_rto_s;
    uint32_t buffer_bytes, unsent_bytes, queue_bytes, mark_bytes, frame_bytes;
};

// First in first out; drops what comes when full, and marks what finds more than `mark` bytes
// before it. On a host, acknowledgements overtake data.
class PortQueue : public Queue<Packet> {
  public:
    uint32_t mark = 0;
    bool host = false;

    bool Enqueue(Ptr<Packet> packet) override {
        bool ack = packet->GetSize() <= ACK_BYTES;
        if (GetNBytes() > mark && !ack) Mark(packet);
        auto place = GetContainer().end();
        if (host && ack) {
            place = GetContainer().begin();
            while (place != GetContainer().end() && (*place)->GetSize() <= ACK_BYTES) ++place;
        }
        return DoEnqueue(place, packet);
    }
    Ptr<Packet> Dequeue() override { return DoDequeue(GetContainer().begin()); }
    Ptr<Packet> Remove() override { return DoRemove(GetContainer().begin()); }
    Ptr<const Packet> Peek() const override { return DoPeek(GetContainer().begin()); }

  private:
    static void Mark(Ptr<Packet> packet) {
        PppHeader ppp;
        Ipv4Header ip;
        packet->RemoveHeader(ppp);
        packet->RemoveHeader(ip);
        if (ip.GetEcn() != Ipv4Header::ECN_NotECT) ip.SetEcn(Ipv4Header::ECN_CE);
        packet->AddHeader(ip);
        packet->AddHeader(ppp);
    }
};

// A node's address is its number plus 1: one address, however many devices it has.
inline Ipv4Address AddressOf(int node) { return Ipv4Address(0x0a000001u + node); }
inline int NodeOf(Ipv4Address address) { return address.Get() - 0x0a000001u; }

// The device by which a node sends to a destination for a source.
using Table = std::unordered_map<uint64_t, Ptr<PointToPointNetDevice>>;
inline uint64_t Pair(uint32_t src, uint32_t dst) { return uint64_t(src) << 32 | dst; }

// A host's routing: it sends by its table, and takes whatever arrives as its own.
class HostRouting : public Ipv4RoutingProtocol {
  public:
    Table* table = nullptr;
    int node = 0;

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header& header, Ptr<NetDevice>,
                               Socket::SocketErrno& error) override {
        int peer = NodeOf(header.GetDestination());
        Ptr<Ipv4Route>& route = routes[peer];
        if (!route) {
            auto found = table->find(Pair(node, peer));
            if (found == table->end()) {
                error = Socket::ERROR_NOROUTETOHOST;
                return nullptr;
            }
            route = Create<Ipv4Route>();
            route->SetSource(AddressOf(node));
            route->SetDestination(header.GetDestination());
            route->SetGateway(header.GetDestination());
            route->SetOutputDevice(found->second);
        }
        error = Socket::ERROR_NOTERROR;
        return route;
    }

    bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice> device,
                    const UnicastForwardCallback&, const MulticastForwardCallback&,
                    const LocalDeliverCallback& deliver, const ErrorCallback&) override {
        deliver(packet, header, ipv4->GetInterfaceForDevice(device));
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> stack) override { ipv4 = stack; }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Ptr<Ipv4> ipv4;
    std::map<int, Ptr<Ipv4Route>> routes;
};

// Both are ns-3's, but like Linux's they leave a window to send in, of two segments and of one:
// with less, and nothing on its way, ns-3 never sends again.
class Dctcp : public TcpDctcp {
  public:
    uint32_t GetSsThresh(Ptr<const TcpSocketState> state, uint32_t in_flight) override {
        return std::max(TcpDctcp::GetSsThresh(state, in_flight), 2 * state->m_segmentSize);
    }
    Ptr<TcpCongestionOps> Fork() override { return CopyObject<Dctcp>(this); }
};
class Recovery : public TcpPrrRecovery {
  public:
    void DoRecovery(Ptr<TcpSocketState> state, uint32_t delivered, bool duplicate) override {
        TcpPrrRecovery::DoRecovery(state, delivered, duplicate);
        state->m_cWnd = std::max(state->m_cWnd.Get(), state->m_segmentSize);
    }
    Ptr<TcpRecoveryOps> Fork() override { return CopyObject<Recovery>(this); }
};

// Lets us ask a socket how much it holds that it has not sent yet.
struct Sight : TcpSocketBase {
    static uint32_t Unsent(Ptr<TcpSocketBase> socket) {
        Ptr<TcpTxBuffer> buffer = (*socket).*(&Sight::m_txBuffer);
        Ptr<TcpSocketState> state = (*socket).*(&Sight::m_tcb);
        return buffer->TailSequence() - state->m_highTxMark.Get();
    }
};

// As in Linux, a timeout is the smoothed round trip and at least the minimum on top of it; ns-3's own
// is the minimum, however long the round trip has become.
class Timed : public TcpSocketBase {
  protected:
    void EstimateRtt(const TcpHeader& header) override {
        TcpSocketBase::EstimateRtt(header);
        m_rto = std::max(m_rto.Get(), m_rtt->GetEstimate() + GetMinRto());
    }
    Ptr<TcpSocketBase> Fork() override { return CopyObject<Timed>(this); }
};

struct Lane;

// Carries pieces, one after the other.
struct Connection {
    Lane* lane;
    Ptr<TcpSocketBase> socket;
    int64_t writing = -1;  // the piece that is written, and what is left of it
    uint64_t left = 0;
    std::deque<int64_t> flying;  // written in part or whole, and not delivered
    uint64_t received = 0;       // of the first of them
    bool busy = false;           // choosing, so that nothing else begins to
};

// What one node sends to one other: in a plan with a window, all of it, over as many connections;
// in one without, each transfer over its own.
struct Lane {
    int src, dst;
    using Turn = std::pair<int64_t, int64_t>;  // chunk and piece: first chunks before second ones
    std::priority_queue<Turn, std::vector<Turn>, std::greater<Turn>> waiting;
    std::vector<Connection> connections;
};

// Numbers of transfers and pieces: piece = transfer * chunks + chunk.
class Simulation {
  public:
    uint64_t events = 0, drops = 0, timeouts = 0, recoveries = 0;
    double wall_s = 0;

    Simulation(const Settings& settings, int n_nodes, int n_chunks, int n_phases, int a_window)
        : with(settings), chunks(n_chunks), window(a_window), nodes(n_nodes), table(n_nodes),
          is_host(n_nodes), paused(n_nodes), sends(n_nodes), phase_left(n_phases),
          phase_members(n_phases) {
        Time::SetResolution(Time::PS);
        Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(false));
        Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(with.min_rto_s)));
        Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(with.mtu - HEADER_BYTES));
        Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(with.initial_window));
        Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
        Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(with.buffer_bytes));
        Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(with.buffer_bytes));
        for (auto& node : nodes) node = CreateObject<Node>();
    }

    void Host(int node) {
        is_host[node] = true;
        auto routing = CreateObject<HostRouting>();
        routing->node = node;
        routing->table = &table[node];
        auto ipv4 = CreateObject<Ipv4L3Protocol>();
        nodes[node]->AggregateObject(CreateObject<ArpL3Protocol>());
        nodes[node]->AggregateObject(ipv4);
        nodes[node]->AggregateObject(CreateObject<TrafficControlLayer>());
        nodes[node]->AggregateObject(CreateObject<TcpL4Protocol>());
        ipv4->SetRoutingProtocol(routing);
    }

    // Links are numbered as they are added; hosts must be known before.
    void Link(int src, int dst, double rate, double latency) {
        auto channel = CreateObject<PointToPointChannel>();
        channel->SetAttribute("Delay", TimeValue(Seconds(latency)));
        devices.push_back(Device(src, rate, channel));
        Device(dst, rate, channel);
    }

    void Path(int src, int dst, const std::vector<int>& links) {
        for (int link : links) {
            auto device = devices[link];
            table[device->GetNode()->GetId()][Pair(src, dst)] = device;
        }
    }

    void Pause(int node, double begin, double end) {
        pauses.push_back({BEGIN_S + begin, [=, this] { paused[node] = true; }});
        pauses.push_back({BEGIN_S + end, [=, this] {
                              paused[node] = false;
                              for (auto* lane : sends[node])
                                  for (auto& connection : lane->connections) Pump(connection);
                          }});
    }

    // Transfers are numbered as they are added; those it depends on come first.
    void Transfer(int src, int dst, double nbytes, int phase, const std::vector<int>& after) {
        int number = transfers.size();
        transfers.push_back({src, dst, nbytes, phase});
        for (int other : after) transfers[other].next.push_back(number);
        for (int chunk = 0; chunk < chunks; ++chunk)
            pending.push_back(after.size() + (chunk > 0) + (chunk == 0 && phase > 0));
        phase_members[phase].push_back(number);
        ++phase_left[phase];
        if (src == dst) return;
        auto& lane = lanes[LaneOf(number)];
        if (!lane.connections.empty()) return;
        lane.src = src;
        lane.dst = dst;
        lane.connections.resize(std::max(window, 1), {&lane});
        sends[src].push_back(&lane);
    }

    void Run() {
        auto began = std::chrono::steady_clock::now();
        reported = began;
        for (size_t node = 0; node < nodes.size(); ++node)
            if (is_host[node]) Listen(node);
        for (auto& [key, lane] : lanes)
            for (auto& connection : lane.connections) Open(connection);
        for (auto& [time, action] : pauses) Simulator::Schedule(Seconds(time), action);
        Simulator::Schedule(Seconds(BEGIN_S), [this] { Begin(); });
        Simulator::Run();
        if (delivered < pending.size())
            throw std::runtime_error("nothing more can happen after " + Progress());
        events = Simulator::GetEventCount();
        for (auto& device : devices) drops += device->GetQueue()->GetTotalDroppedPackets();
        wall_s = Since(began);
    }

    double Start(int transfer) const { return transfers[transfer].start_s; }
    double End(int transfer) const { return transfers[transfer].end_s; }

  private:
    struct Sent {
        int src, dst;
        double nbytes;
        int phase;
        std::vector<int> next;
        double start_s = 0, end_s = 0;
        int done = 0;  // chunks
    };

    Settings with;
    int chunks, window;
    std::vector<Ptr<Node>> nodes;
    std::vector<Ptr<PointToPointNetDevice>> devices;  // of links, at their source
    std::vector<Table> table;
    std::vector<char> is_host, paused;
    std::map<std::tuple<int, int, int>, Lane> lanes;
    std::vector<std::vector<Lane*>> sends;
    std::map<std::tuple<int, int, int>, Connection*> opened;  // by source, its port, destination
    std::vector<int> phase_left;
    std::vector<std::vector<int>> phase_members;
    std::vector<Sent> transfers;
    std::vector<int> pending;
    std::vector<std::pair<double, std::function<void()>>> pauses;
    std::vector<int64_t> arrivals;
    std::chrono::steady_clock::time_point reported;
    uint64_t accepted = 0, delivered = 0;
    int phase = 0;
    bool arriving = false;

    Ptr<PointToPointNetDevice> Device(int node, double rate, Ptr<PointToPointChannel> channel) {
        auto device = CreateObject<PointToPointNetDevice>();
        device->SetAddress(Mac48Address::Allocate());
        device->SetDataRate(DataRate(rate));
        device->SetMtu(with.mtu);
        // What a frame has besides our packet, as time after it.
        device->SetInterframeGap(Seconds(8.0 * (with.frame_bytes - PPP_BYTES) / rate));
        auto fifo = CreateObject<PortQueue>();
        fifo->mark = with.mark_bytes;
        fifo->host = is_host[node];
        fifo->SetMaxSize(QueueSize(QueueSizeUnit::BYTES, with.queue_bytes));
        device->SetQueue(fifo);
        nodes[node]->AddDevice(device);
        device->Attach(channel);
        if (is_host[node]) {
            auto ipv4 = nodes[node]->GetObject<Ipv4>();
            auto interface = ipv4->AddInterface(device);
            ipv4->AddAddress(interface, Ipv4InterfaceAddress(AddressOf(node), Ipv4Mask("/8")));
            ipv4->SetUp(interface);
        } else {
            auto* out = &table[node];
            device->SetReceiveCallback(NetDevice::ReceiveCallback(
                [out](Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&) {
                    Ipv4Header ip;
                    packet->PeekHeader(ip);
                    auto& next = out->at(Pair(NodeOf(ip.GetSource()), NodeOf(ip.GetDestination())));
                    return next->Send(packet->Copy(), next->GetBroadcast(), IPV4);
                }));
        }
        return device;
    }

    Ptr<TcpSocketBase> NewSocket(int node) {
        auto tcp = nodes[node]->GetObject<TcpL4Protocol>();
        auto socket = CreateObject<Timed>();
        socket->SetNode(nodes[node]);
        socket->SetTcp(tcp);
        socket->SetRtt(CreateObject<RttMeanDeviation>());
        tcp->AddSocket(socket);
        socket->SetCongestionControlAlgorithm(CreateObject<Dctcp>());
        socket->SetRecoveryAlgorithm(CreateObject<Recovery>());
        return socket;
    }

    void Listen(int node) {
        auto socket = NewSocket(node);
        socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        socket->Listen();
        socket->SetAcceptCallback(
            MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
            Callback<void, Ptr<Socket>, const Address&>(
                [this, node](Ptr<Socket> peer, const Address& from) {
                    auto source = InetSocketAddress::ConvertFrom(from);
                    auto* connection =
                        opened.at({NodeOf(source.GetIpv4()), source.GetPort(), node});
                    peer->SetRecvCallback(Callback<void, Ptr<Socket>>(
                        [this, connection](Ptr<Socket> socket) { Take(*connection, socket); }));
                    ++accepted;
                }));
    }

    void Open(Connection& connection) {
        auto* it = &connection;
        auto socket = it->socket = NewSocket(it->lane->src);
        socket->Bind(InetSocketAddress(AddressOf(it->lane->src), 0));
        Address name;
        socket->GetSockName(name);
        int port = InetSocketAddress::ConvertFrom(name).GetPort();
        opened[{it->lane->src, port, it->lane->dst}] = it;
        socket->Connect(InetSocketAddress(AddressOf(it->lane->dst), PORT));
        socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
            [this, it](Ptr<Socket>, uint32_t) { Pump(*it); }));
        using State = TcpSocketState::TcpCongState_t;
        socket->TraceConnectWithoutContext(
            "CongState", Callback<void, State, State>([this](State, State now) {
                timeouts += now == TcpSocketState::CA_LOSS;
                recoveries += now == TcpSocketState::CA_RECOVERY;
            }));
    }

    void Begin() {
        if (accepted < opened.size())
            throw std::runtime_error("not every connection opened in time");
        // All are found before the first is written: what is written makes more of them ready.
        std::vector<int64_t> first;
        for (size_t piece = 0; piece < pending.size(); ++piece)
            if (!pending[piece]) first.push_back(piece);
        for (int64_t piece : first) Ready(piece);
        if (pending.empty()) Simulator::Stop();
    }

    std::tuple<int, int, int> LaneOf(int transfer) const {
        auto& it = transfers[transfer];
        return {it.src, it.dst, window ? 0 : transfer};
    }

    // A piece lacks nothing.
    void Ready(int64_t piece) {
        auto& transfer = transfers[piece / chunks];
        if (transfer.src == transfer.dst) {
            Arrive(piece);
            Written(piece);
            return;
        }
        auto& lane = lanes.at(LaneOf(piece / chunks));
        lane.waiting.push({piece % chunks, piece});
        for (auto& connection : lane.connections)
            if (connection.writing < 0) Pump(connection);
    }

    void Need(int64_t piece) {
        if (!--pending[piece]) Ready(piece);
    }

    // Write what waits, in its order, as long as little of it is unsent.
    void Pump(Connection& connection) {
        if (connection.busy) return;
        connection.busy = true;
        auto& waiting = connection.lane->waiting;
        while (!paused[connection.lane->src]) {
            if (connection.writing < 0) {
                if (waiting.empty()) break;
                connection.writing = waiting.top().second;
                waiting.pop();
                connection.left = Bytes(connection.writing);
                connection.flying.push_back(connection.writing);
                if (connection.writing % chunks == 0)
                    transfers[connection.writing / chunks].start_s = Now();
            }
            uint32_t unsent = Sight::Unsent(connection.socket);
            if (unsent >= with.unsent_bytes) break;
            uint32_t some = std::min<uint64_t>(connection.left, with.unsent_bytes - unsent);
            int taken = connection.socket->Send(Create<Packet>(some), 0);
            if (taken <= 0) break;
            connection.left -= taken;
            if (!connection.left) {
                int64_t piece = connection.writing;
                connection.writing = -1;
                Written(piece);
            }
        }
        connection.busy = false;
    }

    // The next piece of a transfer follows the one before it out of the node.
    void Written(int64_t piece) {
        if ((piece + 1) % chunks) Need(piece + 1);
    }

    void Take(Connection& connection, Ptr<Socket> socket) {
        while (Ptr<Packet> packet = socket->Recv()) {
            if (!packet->GetSize()) break;
            connection.received += packet->GetSize();
        }
        while (!connection.flying.empty() &&
               connection.received >= Bytes(connection.flying.front())) {
            int64_t piece = connection.flying.front();
            connection.flying.pop_front();
            connection.received -= Bytes(piece);
            Arrive(piece);
        }
    }

    // A piece is where it should be: tell all that waited for it, one at a time.
    void Arrive(int64_t piece) {
        arrivals.push_back(piece);
        if (arriving) return;
        arriving = true;
        while (!arrivals.empty()) {
            int64_t next = arrivals.back();
            arrivals.pop_back();
            Tell(next);
        }
        arriving = false;
        if (delivered == pending.size()) Simulator::Stop();
        if (Since(reported) > REPORT_S) {
            std::cerr << Progress() << std::endl;
            reported = std::chrono::steady_clock::now();
        }
    }

    void Tell(int64_t piece) {
        auto& transfer = transfers[piece / chunks];
        ++delivered;
        for (int other : transfer.next) Need(int64_t(other) * chunks + piece % chunks);
        if (++transfer.done < chunks) return;
        transfer.end_s = Now();
        if (transfer.src == transfer.dst) transfer.start_s = transfer.end_s;
        --phase_left[transfer.phase];
        while (phase + 1 < int(phase_left.size()) && !phase_left[phase])
            for (int member : phase_members[++phase]) Need(int64_t(member) * chunks);
    }

    // Whole bytes that add up to the transfer's; never none, so that every message is seen.
    uint64_t Bytes(int64_t piece) const {
        double nbytes = transfers[piece / chunks].nbytes;
        uint64_t chunk = piece % chunks;
        uint64_t before = nbytes * chunk / chunks, after = nbytes * (chunk + 1) / chunks;
        return std::max<uint64_t>(after - before, 1);
    }

    double Now() const { return Simulator::Now().GetSeconds() - BEGIN_S; }

    std::string Progress() const {
        return std::to_string(delivered) + " of " + std::to_string(pending.size()) +
               " messages, at " + std::to_string(Now()) + " s";
    }

    static double Since(std::chrono::steady_clock::time_point then) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
    }
};

// From the input: the numbers of Settings in their order; how many nodes, chunks and phases, and the
// window; then a line for each call of Simulation, where a list comes after its length.
int Main(std::istream& in, std::ostream& out) {
    Settings with;
    in >> with.mtu >> with.initial_window >> with.min_rto_s >> with.buffer_bytes;
    in >> with.unsent_bytes >> with.queue_bytes >> with.mark_bytes >> with.frame_bytes;
    int n_nodes, chunks, phases, window;
    in >> n_nodes >> chunks >> phases >> window;
    if (!in) throw std::runtime_error("the settings are not whole");
    Simulation simulation(with, n_nodes, chunks, phases, window);

    int n_transfers = 0, src, dst, phase;
    double a, b;
    auto list = [&] {
        size_t n = 0;
        in >> n;
        std::vector<int> items(n);
        for (int& item : items) in >> item;
        return items;
    };
    std::string what;
    while (in >> what && what != "end") {
        if (what == "host" && in >> src) {
            simulation.Host(src);
        } else if (what == "link" && in >> src >> dst >> a >> b) {
            simulation.Link(src, dst, a, b);
        } else if (what == "path" && in >> src >> dst) {
            simulation.Path(src, dst, list());
        } else if (what == "pause" && in >> src >> a >> b) {
            simulation.Pause(src, a, b);
        } else if (what == "transfer" && in >> src >> dst >> a >> phase) {
            simulation.Transfer(src, dst, a, phase, list());
            ++n_transfers;
        } else {
            throw std::runtime_error("a line begins with " + what + " and does not go on so");
        }
    }
    if (!in) throw std::runtime_error("the input does not end with a line that says so");

    simulation.Run();
    out.precision(17);
    out << simulation.drops << ' ' << simulation.timeouts << ' ' << simulation.recoveries << ' '
        << simulation.events << ' ' << simulation.wall_s << '\n';
    for (int i = 0; i < n_transfers; ++i)
        out << simulation.Start(i) << ' ' << simulation.End(i) << '\n';
    return out.flush() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace slowlink

int main() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends with who started it
    std::ios::sync_with_stdio(false);
    int status = EXIT_FAILURE;
    try {
        status = slowlink::Main(std::cin, std::cout);
    } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
    }
    // What ns-3 keeps in static variables need not be taken apart.
    std::_Exit(status);
}
