package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/keelson-io/keelson/lab/binaries"
)

// madeBy is the label of objects that the lab creates itself.
const madeBy = "lab.keelson.io/made-by"

// furnish creates Keelson's rights, a storage class and nodes, if they are missing.
// Then it waits until pods can run.
func (l *Lab) furnish(ctx context.Context, s *clusterState) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	if err := s.bindRole(ctx, client, "cluster-admin", Keelson); err != nil {
		return err
	}
	if s.Options.ControlPlaneOnly {
		return nil
	}
	start := time.Now()
	var changed bool
	if s.Options.real() {
		err = s.furnishReal(ctx, client)
	} else if err = s.furnishStorage(ctx, client); err == nil {
		changed, err = s.furnishNodes(ctx, client)
	}
	if err != nil {
		return err
	}
	if err := s.await(ctx, binaries.ControllerManager, func(ctx context.Context) error {
		if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return fmt.Errorf("no pod can be made yet: %w", err)
		}
		return nil
	}); err != nil {
		return err
	}
	player, ready := binaries.Kwok, s.nodesReady
	if s.Options.real() {
		player, ready = "node-0", s.realNodesReady
	}
	if err := s.await(ctx, player, func(ctx context.Context) error { return ready(ctx, client) }); err != nil {
		return err
	}
	if changed || s.Options.real() {
		l.printf("%s: %d nodes ready in %s", s.Name, s.Options.Nodes, since(start))
	}
	return nil
}

// bindRole gives a user a ClusterRole.
func (s *clusterState) bindRole(ctx context.Context, client kubernetes.Interface, role, user string) error {
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "lab:" + strings.TrimPrefix(user, "system:"), Labels: map[string]string{madeBy: "lab"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%s: give %s its rights: %w", s.Name, user, err)
	}
	return nil
}

// furnishStorage creates the storage class whose provisioner is simulated by
// files/stages/volume.yaml.
func (s *clusterState) furnishStorage(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "lab",
			Labels:      map[string]string{madeBy: "lab"},
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner: "lab.keelson.io/volume",
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%s: make the storage class: %w", s.Name, err)
	}
	return nil
}

// furnishNodes creates missing nodes and deletes surplus nodes.
func (s *clusterState) furnishNodes(ctx context.Context, client kubernetes.Interface) (changed bool, err error) {
	nodes := client.CoreV1().Nodes()
	found, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: madeBy})
	if err != nil {
		return false, fmt.Errorf("%s: list nodes: %w", s.Name, err)
	}
	have := map[string]bool{}
	for _, n := range found.Items {
		have[n.Name] = true
	}
	for i := range s.Options.Nodes {
		n := s.node(i)
		if have[n.Name] {
			delete(have, n.Name)
			continue
		}
		changed = true
		if _, err := nodes.Create(ctx, n, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return changed, fmt.Errorf("%s: make node %s: %w", s.Name, n.Name, err)
		}
	}
	for name := range have {
		changed = true
		if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return changed, fmt.Errorf("%s: remove node %s: %w", s.Name, name, err)
		}
	}
	return changed, nil
}

// zones is the number of zones that nodes are spread over.
const zones = 3

func zone(i int) string { return "lab-" + string(rune('a'+i%zones)) }

// podRange returns the address range of a node's pods. A node has up to 110 pods, so the
// range is a /24 of 10.244.0.0/16, and from the 257th node on of 10.246.0.0/16 to
// 10.248.0.0/16. The nodes' own addresses are in 10.245.0.0/16.
func podRange(i int) string {
	second := 244 + i/256
	if second > 244 {
		second++
	}
	return fmt.Sprintf("10.%d.%d.0/24", second, i%256)
}

// nodeAddress returns the address of a node, in 10.245.0.0/16.
func nodeAddress(i int) string { return fmt.Sprintf("10.245.%d.%d", i/200, i%200+1) }

// node returns the node with an index, as a kubelet would register it.
func (s *clusterState) node(i int) *corev1.Node {
	name := fmt.Sprintf("%s-node-%d", s.Name, i)
	labels := map[string]string{
		madeBy:                           "lab",
		corev1.LabelHostname:             name,
		corev1.LabelOSStable:             "linux",
		corev1.LabelArchStable:           "amd64",
		corev1.LabelTopologyRegion:       "lab",
		corev1.LabelTopologyZone:         zone(i),
		corev1.LabelInstanceTypeStable:   "lab.large",
		"node-role.kubernetes.io/worker": "",
	}
	maps.Copy(labels, s.Options.NodeLabels)
	room := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	podCIDR := podRange(i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
		Status: corev1.NodeStatus{
			Capacity:    room,
			Allocatable: room,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: nodeAddress(i)},
				{Type: corev1.NodeHostName, Address: name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion:          s.Versions[binaries.APIServer],
				ContainerRuntimeVersion: "kwok://" + strings.TrimPrefix(s.Versions[binaries.Kwok], "v"),
				OSImage:                 "Keelson lab",
				KernelVersion:           "6.1.0",
				OperatingSystem:         "linux",
				Architecture:            "amd64",
			},
		},
	}
}

// errNodes is returned while nodes aren't ready.
var errNodes = errors.New("nodes are not ready")

// nodesReady returns nil if the number of nodes is right, and all are Ready and without
// the taint of a new node. Otherwise the error wraps errNodes.
func (s *clusterState) nodesReady(ctx context.Context, client kubernetes.Interface) error {
	found, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: madeBy})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	ready := 0
	for _, n := range found.Items {
		if schedulable(n) {
			ready++
		}
	}
	if ready != s.Options.Nodes || len(found.Items) != ready {
		return fmt.Errorf("%d of %d %w", ready, s.Options.Nodes, errNodes)
	}
	return nil
}

func schedulable(n corev1.Node) bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady {
			return false
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
