package differ

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

// Nodes are the nodes of a cluster, as far as they decide where pods may run: names, labels
// and taints. Conditions count those that fit a pod: nodes.matching(object.spec.template.spec).
// They are read only, and safe for concurrent use. The zero value has none.
type Nodes struct {
	list   []*corev1.Node
	taints int // of all nodes
}

// conditionTaints begins the taints that Kubernetes sets while a node is not well or is
// drained. They pass, so they say nothing about where pods belong.
const conditionTaints = "node.kubernetes.io/"

// Add takes from a Node object what is needed of it. The error names an object that is no Node.
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
		return fmt.Errorf("node %v: %w", nested(o, "metadata", "name"), err)
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

// into reads a value into a struct by its JSON.
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

// matching counts the nodes that a pod may run on by its node name, node selector, required
// node affinity and tolerations: the scheduler's rules that don't depend on other pods.
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
			continue // a term that can't be parsed matches no node, as for the scheduler
		}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return repels(t, pod.Spec.Tolerations) }) {
			count++
		}
	}
	return count, nil
}

// repels reports whether a taint keeps a pod with these tolerations from a node. The
// scheduler's own function wants a logger, which nothing here may have. An operator that is
// not known tolerates nothing.
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

// placementOf are the fields of a pod spec that decide on which nodes it may run.
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

// nodesValue is a value of CEL that has one method, matching.
type nodesValue struct{ *Nodes }

// ConvertToNative returns an error: nodes are for conditions alone.
func (nodesValue) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("nodes are no %s", t)
}

// ConvertToType returns an error: nodes are for conditions alone.
func (nodesValue) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("nodes are no %s", t.TypeName())
}

// Equal reports whether a value is not null, nor anything else: nodes equal only themselves.
func (v nodesValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(nodesValue)
	return types.Bool(ok && o.Nodes == v.Nodes)
}

// Type is keelson.Nodes.
func (nodesValue) Type() ref.Type { return cel.ObjectType("keelson.Nodes") }

// Value is the [Nodes].
func (v nodesValue) Value() any { return v.Nodes }

const matchingFunction = "matching"

// nodesFunction is nodes.matching(POD SPEC).
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

var errPodSpec = errors.New("what is no map is no pod spec")

// podSpec is a pod spec as a condition has it: a part of an object, or a map of its own.
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
	// nodeCost is what one node costs in CEL's units: about a microsecond.
	nodeCost = 10
	// matchingMost bounds one count: a fifth of a second. 10,000 nodes, each with some labels
	// and taints, cost less.
	matchingMost = 2_000_000
)

// cost is about what it takes to count the nodes for a pod, in CEL's units: to read the pod's
// fields, and for each node its affinity and its taints.
func (n *Nodes) cost(placement map[string]any) uint64 {
	affinity := valuesIn(placement["affinity"]) + valuesIn(placement["nodeSelector"])
	tolerations := valuesIn(placement["tolerations"])
	return uint64(4*(affinity+tolerations) + len(n.list)*(nodeCost+affinity) + n.taints*tolerations + 1) //nolint:gosec // no part is negative
}

// valuesIn counts the values of JSON in one of them.
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

// nodesCost counts what matching costs.
type nodesCost struct{}

// CallCost returns nil for other functions, whose cost CEL knows.
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
