package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Nodes are the nodes of a cluster: names, labels and taints, which decide where pods may run.
// Conditions count the nodes that fit a pod: nodes.matching(object.spec.template.spec). Nodes are
// safe for concurrent use once the last Add has returned. The zero value has no nodes.
type Nodes struct {
	list   []*corev1.Node
	taints int // of all nodes
}

// conditionTaints is the prefix of taints that Kubernetes sets while a node is unhealthy or
// drained. Such taints are temporary, so they do not show where pods belong.
const conditionTaints = "node.kubernetes.io/"

// Add appends a Node object, of which Nodes keeps only the needed fields. The error names a node
// whose metadata or spec can't be decoded.
func (n *Nodes) Add(o map[string]any) error {
	var read struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Taints []corev1.Taint `json:"taints"`
		} `json:"spec"`
	}
	if err := into(map[string]any{"metadata": o["metadata"], "spec": o["spec"]}, &read); err != nil {
		return fmt.Errorf("node %v: %w", read.Metadata.Name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: read.Metadata.Name, Labels: read.Metadata.Labels}}
	for _, t := range read.Spec.Taints {
		if !strings.HasPrefix(t.Key, conditionTaints) {
			node.Spec.Taints = append(node.Spec.Taints, t)
		}
	}
	n.list, n.taints = append(n.list, node), n.taints+len(node.Spec.Taints)
	return nil
}

// into decodes a value into a struct by its JSON.
func into(v, out any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// matching counts the nodes that a pod may run on by its node name, node selector, required node
// affinity and tolerations: the scheduler's rules that don't depend on other pods. It is an error
// if the count costs more than matchingMost.
func (n *Nodes) matching(spec map[string]any) (int, error) {
	placement := placementOf(spec)
	if cost := n.cost(placement); cost > matchingMost {
		return 0, fmt.Errorf("to count %d nodes for this pod costs %d: %d are allowed", len(n.list), cost, matchingMost)
	}
	var pod corev1.Pod
	if err := into(placement, &pod.Spec); err != nil {
		return 0, err
	}
	affinity, count := nodeaffinity.GetRequiredNodeAffinity(&pod), 0
	for _, node := range n.list {
		if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
			continue
		}
		if fits, err := affinity.Match(node); err != nil || !fits {
			continue // a term that can't be parsed matches no node, as in the scheduler
		}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return repels(t, pod.Spec.Tolerations) }) {
			count++
		}
	}
	return count, nil
}

// repels reports whether a taint keeps a pod with these tolerations from a node. The scheduler's
// own function needs a logger, and this package has none. An unknown operator tolerates nothing.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
func repels(taint corev1.Taint, tolerations []corev1.Toleration) bool {
	if taint.Effect == corev1.TaintEffectPreferNoSchedule {
		return false
	}
	return !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case "", corev1.TolerationOpEqual:
			return t.Key != "" && t.Value == taint.Value
		case corev1.TolerationOpLt, corev1.TolerationOpGt: // alpha
		}
		return false
	})
}

// placementOf returns the fields of a pod spec that decide on which nodes the pod may run.
func placementOf(spec map[string]any) map[string]any {
	out := map[string]any{}
	for _, name := range []string{"nodeName", "nodeSelector", "tolerations"} {
		out[name] = spec[name]
	}
	if affinity, ok := spec["affinity"].(map[string]any); ok {
		out["affinity"] = map[string]any{"nodeAffinity": affinity["nodeAffinity"]}
	}
	return out
}

// nodesValue is a CEL value with one method, matching.
type nodesValue struct{ *Nodes }

// ConvertToNative returns an error: nodes are only for conditions.
func (nodesValue) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("nodes are no %s", t)
}

// ConvertToType returns an error: nodes are only for conditions.
func (nodesValue) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("nodes are no %s", t.TypeName())
}

// Equal reports whether the other value is the same [Nodes].
func (v nodesValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(nodesValue)
	return types.Bool(ok && o.Nodes == v.Nodes)
}

// Type returns keelson.Nodes.
func (nodesValue) Type() ref.Type { return cel.ObjectType("keelson.Nodes") }

// Value returns the [Nodes].
func (v nodesValue) Value() any { return v.Nodes }

// Value returns the nodes as the value of a variable; null if they are unknown.
func (n *Nodes) Value() any {
	if n == nil {
		return nil
	}
	return nodesValue{n}
}

const matchingFunction = "matching"

// nodesFunction declares nodes.matching(POD SPEC).
func nodesFunction() cel.EnvOption {
	return cel.Function(matchingFunction, cel.MemberOverload("nodes_matching_dyn", []*cel.Type{cel.DynType, cel.DynType}, cel.IntType,
		cel.BinaryBinding(func(nodes, spec ref.Val) ref.Val {
			n, ok := nodes.(nodesValue)
			if !ok {
				return types.MaybeNoSuchOverloadErr(nodes)
			}
			native, err := podSpec(spec)
			if err != nil {
				return types.WrapErr(err)
			}
			count, err := n.matching(native)
			if err != nil {
				return types.WrapErr(err)
			}
			return types.Int(count)
		})))
}

var errPodSpec = errors.New("the pod spec is not a map")

// podSpec returns the pod spec in a condition's argument: a part of an object, or a map that the
// condition builds.
func podSpec(spec ref.Val) (map[string]any, error) {
	if native, ok := spec.Value().(map[string]any); ok {
		return native, nil
	}
	if spec.Type() != types.MapType {
		return nil, errPodSpec
	}
	v, err := spec.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fmt.Errorf("pod spec: %w", err)
	}
	value, _ := v.(*structpb.Value)
	native, ok := value.AsInterface().(map[string]any)
	if !ok {
		return nil, errPodSpec
	}
	return native, nil
}

const (
	// nodeCost is the cost of one node, in CEL's units: about a microsecond.
	nodeCost = 10
	// matchingMost bounds the cost of one count, in CEL's units: a fifth of a second. Counting
	// 10,000 nodes with some labels and taints costs less.
	matchingMost = 2_000_000
)

// cost estimates the cost of counting the nodes for a pod, in CEL's units: reading the pod's
// fields, and for each node its affinity and its taints.
func (n *Nodes) cost(placement map[string]any) uint64 {
	affinity := valuesIn(placement["affinity"]) + valuesIn(placement["nodeSelector"])
	tolerations := valuesIn(placement["tolerations"])
	return uint64(4*(affinity+tolerations) + len(n.list)*(nodeCost+affinity) + n.taints*tolerations + 1) //nolint:gosec // no part is negative
}

// valuesIn counts a JSON value and all values inside it.
func valuesIn(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			n += valuesIn(child)
		}
	case []any:
		for _, child := range v {
			n += valuesIn(child)
		}
	}
	return n
}

// nodesCost estimates the cost of calls of matching.
type nodesCost struct{}

// CallCost returns nil for other functions and for invalid arguments: CEL then uses its own
// estimate.
func (nodesCost) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if function != matchingFunction || len(args) != 2 {
		return nil
	}
	n, ok := args[0].(nodesValue)
	if !ok {
		return nil
	}
	spec, err := podSpec(args[1])
	if err != nil {
		return nil
	}
	cost := min(n.cost(placementOf(spec)), matchingMost)
	return &cost
}
